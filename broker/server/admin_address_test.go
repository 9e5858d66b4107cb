package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestAddressSettingsOverHTTP(t *testing.T) {
	e := start(t, server.Options{})
	srv := httptest.NewServer(checkHTTP(t, e.s.Handler()))
	defer srv.Close()
	for _, c := range []struct {
		method, path, body string
		status             int
		words              []string // of the response
	}{
		{"PUT", "/v1/address-settings/%23", `{"dead-letter-address":"DLA","max-delivery-attempts":3,"auto-create-dead-letter-resources":true,"dead-letter-queue-prefix":"","dead-letter-queue-suffix":".DLQ"}`, 201, []string{`"match": "#"`, `"DLA"`}},
		{"PUT", "/v1/address-settings/orders.*", `{"redelivery-delay":5000}`, 201, []string{`"redelivery-delay": 5000`}},
		{"PUT", "/v1/address-settings/orders.*", `{"redelivery-delay":"6s","redelivery-delay-multiplier":1.5}`, 200, []string{`"redelivery-delay": 6000`, "1.5"}},
		{"GET", "/v1/address-settings/orders.*", "", 200, []string{`"match": "orders.*"`, `"redelivery-delay": 6000`}},
		{"GET", "/v1/address-settings", "", 200, []string{`"address_settings": [`, `"orders.*"`, `"#"`}},
		{"GET", "/v1/topics/orders.eu/address-settings", "", 200, []string{`"topic": "orders.eu"`, `"orders.*",`, `"redelivery-delay": 6000`, `"max-delivery-attempts": 3`}},
		{"PUT", "/v1/address-settings/a..b", `{"redelivery-delay":-1,"redelivery-collision-avoidance-factor":7}`, 400, []string{"a..b", "-1", "factor is 7", "0.0 to 1.0"}},
		{"PUT", "/v1/address-settings/t", `{"redelivery_delay":1}`, 400, []string{`\"redelivery_delay\" is unknown`, "redelivery-delay, "}},
		{"PUT", "/v1/address-settings/t", `{"redelivery-delay":1.5}`, 400, []string{"1.5", "milliseconds"}},
		{"GET", "/v1/address-settings/t", "", 404, []string{`"code": 40400`, `\"t\"`}},
		{"DELETE", "/v1/address-settings/t", "", 404, []string{`"code": 40400`}},
		{"DELETE", "/v1/address-settings/orders.*", "", 204, nil},
		{"GET", "/v1/address-settings/orders.*", "", 404, nil},
		{"POST", "/v1/address-settings/orders.*", "", 405, nil},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status {
			t.Errorf("%s %s %s: %d %s %v, want %d", c.method, c.path, c.body, resp.StatusCode, body, err, c.status)
		}
		for _, w := range c.words {
			if !strings.Contains(string(body), w) {
				t.Errorf("%s %s %s: %s does not contain %s", c.method, c.path, c.body, body, w)
			}
		}
	}
}

// A consumer over HTTP that leaves the interval to the broker has that of the address.
func TestRetryOverHTTPHasTheAddressDelay(t *testing.T) {
	e := start(t, server.Options{MinLongPolling: 1})
	if _, err := e.b.PutAddressSettings(t.Context(), "normal", settings.Address{RedeliveryDelay: new(settings.Milliseconds(1))}); err != nil {
		t.Fatal(err)
	}
	e.send(msg("normal", "m"))
	handle, err := json.Marshal(e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle())
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/groups/g/retry", strings.NewReader(`{"attempt":1,"handle":`+string(handle)+`}`))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	begin := time.Now()
	checkHTTP(t, e.s.Handler()).ServeHTTP(w, r)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"delay": "1ms"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	m := e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(8 * time.Second) }))
	if m.GetSystemProperties().GetDeliveryAttempt() != 2 || time.Since(begin) > 9*time.Second {
		t.Errorf("attempt %d came after %v, not after a millisecond", m.GetSystemProperties().GetDeliveryAttempt(), time.Since(begin))
	}
}
