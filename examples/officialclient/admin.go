package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// An admin talks to the broker's HTTP administration.
type admin struct {
	base   string
	client *http.Client
}

// newAdmin takes host:port, or a URL for a broker whose HTTP speaks TLS.
func newAdmin(at string) admin {
	if !strings.Contains(at, "://") {
		return admin{"http://" + at, http.DefaultClient}
	}
	// As the official client does over gRPC. A program of yours verifies.
	return admin{at, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
}

// path escapes the name: those of dead-letter topics have % in them.
func path(kind, name string) string { return "/v1/" + kind + "/" + url.PathEscape(name) }

func (a admin) put(ctx context.Context, path, settings string) error {
	return a.do(ctx, http.MethodPut, path, settings, nil)
}

func (a admin) delete(ctx context.Context, path string) error {
	return a.do(ctx, http.MethodDelete, path, "", nil)
}

// A progress is how far a group is in a topic, as far as this program looks.
type progress struct {
	Topic   string `json:"topic"`
	Backlog struct {
		Messages int `json:"messages"`
	} `json:"backlog"`
	Acked       int `json:"acked"`
	Redelivered int `json:"redelivered"`
	DeadLetters int `json:"dead_letters"`
}

func (a admin) progress(ctx context.Context, group, topic string) (progress, error) {
	var g struct {
		Topics []progress `json:"topics"`
	}
	if err := a.do(ctx, http.MethodGet, path("groups", group), "", &g); err != nil {
		return progress{}, err
	}
	for _, p := range g.Topics {
		if p.Topic == topic {
			return p, nil
		}
	}
	return progress{}, fmt.Errorf("group %s has not received from topic %s", group, topic)
}

func (a admin) do(ctx context.Context, method, path, body string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if keys.AccessKey != "" {
		req.SetBasicAuth(keys.AccessKey, keys.AccessSecret)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", method, path, err)
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
