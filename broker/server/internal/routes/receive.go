package routes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// defaultInvisible is the invisible duration of a message received over HTTP if the client requests
// none. The engine's bounds apply.
const defaultInvisible = 30 * time.Second

// jsonFactorOfMessages is how many times the size of a delivery's body its response over HTTP
// takes: the body, its base64 and the JSON around that, which grows by doubling.
const jsonFactorOfMessages = 5

// A ReceiveRequest requests messages. Missing keys have the documented defaults.
type ReceiveRequest struct {
	Max               *int               `json:"max"`                // 1; without end in a stream
	MaxBytes          int                `json:"max_bytes"`          // no bound
	Wait              *settings.Duration `json:"wait"`               // 0; for ever in a stream
	InvisibleDuration *settings.Duration `json:"invisible_duration"` // defaultInvisible
	Filter            struct {
		Type       string `json:"type"`       // TAG
		Expression string `json:"expression"` // *
	} `json:"filter"`
	AttemptID string `json:"attempt_id"` // none
	Repeat    bool   `json:"repeat"`     // false: new messages come if the attempt has none in flight
	Push      bool   `json:"push"`       // false: a time-out makes the message ready at once
	Text      bool   `json:"text"`       // false: all bodies are base64
}

// poll converts a receive for the engine, except for Max and Wait. least and most are the engine's
// bounds of an invisible duration.
func (q *ReceiveRequest) poll(group, topic string, least, most time.Duration) (engine.Request, error) {
	p := engine.Request{ReceiveRequest: transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, Push: q.Push, AttemptID: q.AttemptID, Repeat: q.Repeat, MaxBytes: q.MaxBytes,
		InvisibleDuration: min(max(defaultInvisible, least), most), Filter: tidegate.Filter{Expression: q.Filter.Expression},
	}}
	if q.InvisibleDuration != nil {
		p.InvisibleDuration = time.Duration(*q.InvisibleDuration)
	}
	switch q.Filter.Type {
	case "", "TAG":
	case "SQL92":
		p.Filter.SQL = true
	default:
		return p, refusal.New(tidegate.CodeIllegalFilterExpression, "filter.type", fmt.Sprintf("filter.type is %.50q; give TAG or SQL92", q.Filter.Type))
	}
	if q.MaxBytes < 0 {
		return p, refusal.New(tidegate.CodeBadRequest, "max_bytes", fmt.Sprintf("max_bytes is %d; give 1 or more, or leave it out for no limit", q.MaxBytes))
	}
	if q.Wait != nil && *q.Wait < 0 {
		return p, refusal.New(protocol.CodeIllegalPollingTime, "wait", fmt.Sprintf("wait is %v; it must not be negative", time.Duration(*q.Wait)))
	}
	return p, nil
}

// ReceiveMessages receives messages of a topic for a group: once, or as a stream of lines if the
// client accepts that.
//
// It releases the messages if the client was gone before the response, or if the response could not
// be written. The end of a connection after the write is not a failure: a client that has read its
// response may close the connection.
func (h *Messages) ReceiveMessages(w http.ResponseWriter, r *http.Request) (int, any, error) {
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	var req ReceiveRequest
	if err := h.readRequest(w, r, &req); err != nil {
		return 0, nil, err
	}
	least, most := h.Engine.InvisibleBounds()
	p, err := req.poll(r.PathValue("group"), r.PathValue("topic"), least, most)
	if err != nil {
		return 0, nil, err
	}
	from := receiving{h: h, client: client, poll: p, text: req.Text}
	if strings.Contains(r.Header.Get("Accept"), TypeNDJSON) {
		return from.stream(w, r, &req)
	}
	from.poll.Max = 1
	if req.Max != nil {
		if from.poll.Max = *req.Max; *req.Max < 1 || *req.Max > refusal.MaxReceive {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "max",
				fmt.Sprintf("max is %d; give 1 to %d, or request a stream with the header Accept: %s", *req.Max, refusal.MaxReceive, TypeNDJSON))
		}
	}
	var shortened *settings.Duration // the wait, if it is shorter than requested
	if req.Wait != nil {
		from.poll.Wait = min(time.Duration(*req.Wait), h.MaxLongPolling)
		if from.poll.Wait < time.Duration(*req.Wait) {
			shortened = new(settings.Duration(from.poll.Wait))
		}
	}
	ds, err := from.some(r)
	if err != nil {
		return 0, nil, err
	}
	held := transit.Of(r.Context())
	if err := held.Resize(held.Bytes(), true); err != nil {
		return 0, nil, err
	}
	answer, err := json.Marshal(struct {
		Messages    []httpapi.Delivery `json:"messages"`
		LongestWait *settings.Duration `json:"longest_wait,omitempty"`
	}{from.json(ds), shortened})
	if err == nil {
		err = r.Context().Err()
	}
	if err == nil {
		w.Header().Set("Content-Type", TypeJSON)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		if _, err = w.Write(answer); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if errors.Is(err, http.ErrNotSupported) {
			err = nil // all of it is sent when this returns
		}
	}
	if err != nil {
		h.Server.Release(r.Context(), ds) // the client did not get them
	}
	return 0, nil, gone(err)
}

// A receiving is the receives of one request.
type receiving struct {
	h      *Messages
	client string
	poll   engine.Request
	text   bool
}

// some receives once. It returns none if there is none in time, or when the
// server ends or other access rules hold, by which the request is asked again.
func (f *receiving) some(r *http.Request) (ds []*tidegate.Delivery, err error) {
	call := MessageCall{Op: "ReceiveMessage", ClientID: f.client, Topic: f.poll.Topic, Group: f.poll.Group, Messages: f.poll.Max}
	err = f.h.Server.Through(r.Context(), call, func(ctx context.Context) (err error) {
		place, err := f.h.Server.Park(r)
		if err != nil {
			return err
		}
		defer place.Release()
		listed, holder, delist, err := f.h.Server.Enlist(ctx, r, f.client, &f.poll)
		if err != nil {
			return err
		}
		defer func() { delist(err == nil) }()
		parked, stop := f.h.whileAllowed(listed)
		defer stop()
		held := transit.Of(r.Context())
		held.Release() // of the previous batch
		f.poll.Memory = transit.BodiesIn(held, f.poll.Max, jsonFactorOfMessages)
		f.poll.Holder = holder
		ds, err = f.h.Engine.Poll(parked, f.poll)
		if err != nil && ctx.Err() == nil && session.EndedHere(parked) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := f.h.Gate.StillAllowed(r); err != nil {
		f.h.Server.Release(r.Context(), ds)
		return nil, err
	}
	return ds, nil
}

func (f *receiving) json(ds []*tidegate.Delivery) []httpapi.Delivery {
	out, now := make([]httpapi.Delivery, len(ds)), time.Now()
	for i, d := range ds {
		out[i] = httpapi.DeliveryOf(d, f.text, now)
	}
	return out
}

// stream writes deliveries as they arrive, one on each line. It ends after the requested number,
// after the requested time without a delivery, or at the end of the client or the server.
func (f *receiving) stream(w http.ResponseWriter, r *http.Request, req *ReceiveRequest) (int, any, error) {
	h, left := f.h, -1
	switch {
	case req.AttemptID != "":
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "attempt_id", "attempt_id identifies one receive, and a stream has many; leave it out")
	case req.Repeat:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "repeat", "repeat repeats one receive, and a stream has many; leave it out")
	case req.MaxBytes != 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "max_bytes", "max_bytes limits one receive, and a stream has many; leave it out, and read the stream at your own speed")
	case req.Max != nil && *req.Max < 1:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "max", fmt.Sprintf("max is %d; give 1 or more, or leave it out for an endless stream", *req.Max))
	case req.Max != nil:
		left = *req.Max
	}
	out := NewLineWriter(w)
	last := time.Now()
	for {
		f.poll.Max, f.poll.Wait = refusal.MaxReceive, h.MaxLongPolling
		if left >= 0 {
			f.poll.Max = min(left, refusal.MaxReceive)
		}
		if !out.Begun() {
			f.poll.Wait = 0 // errors of the request are reported before the stream begins
		} else if req.Wait != nil {
			f.poll.Wait = min(f.poll.Wait, max(time.Duration(*req.Wait)-time.Since(last), 0))
		}
		ds, err := f.some(r)
		if !out.Begun() && err != nil {
			return 0, nil, err
		}
		out.Begin()
		switch _, cut := errors.AsType[*refusal.Cut](err); {
		case cut || r.Context().Err() != nil && err != nil:
			return 0, nil, gone(err)
		case err != nil:
			return 0, nil, gone(out.End(err))
		case len(ds) > 0:
			held := transit.Of(r.Context())
			if err = held.Resize(held.Bytes(), true); err != nil {
				break
			}
			if err = r.Context().Err(); err == nil {
				err = Write(out, f.json(ds)...)
			}
			last, left = time.Now(), left-len(ds)
		case h.isDraining():
			return 0, nil, nil
		default:
			err = out.Alive()
		}
		if err != nil {
			h.Server.Release(r.Context(), ds)
			return 0, nil, gone(err)
		}
		if left == 0 || req.Wait != nil && time.Since(last) >= time.Duration(*req.Wait) && len(ds) == 0 {
			return 0, nil, nil
		}
	}
}
