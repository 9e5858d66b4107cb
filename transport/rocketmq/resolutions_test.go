package rocketmq

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// RocketMQ reports a transaction that it does not have as an internal error with a text. The error
// matches ErrNotFound then, and the request has certainly changed nothing. Other internal errors do
// not change.
func TestResolutionOfAMissingTransaction(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		missing    bool
	}{
		{"the proxy", "CODE: 1 DESC: TRANSACTION_DATA_NOT_FOUND", true},
		{"another version of the proxy", "cannot found transaction data", true},
		{"another failure", "the disk is full", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.end = func() *rmqpb.Status {
					return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: tt.text}
				}
				err := newClient(t, n, nil).EndTransaction(t.Context(), transport.Transaction{ID: "tx", MessageID: "1", Topic: "t", Endpoint: testAddr}, transport.Commit)
				e, ok := errors.AsType[*tidegate.Error](err)
				if !ok || errors.Is(err, tidegate.ErrNotFound) != tt.missing || e.MaybeStored == tt.missing {
					t.Errorf("%#v, want ErrNotFound: %t, MaybeStored: %t", err, tt.missing, !tt.missing)
				}
			})
		})
	}
}

// ServeChecks ends with an error that matches ErrClosed when the client is closed.
func TestServeChecksOfAClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		served := make(chan error, 1)
		go func() {
			served <- c.ServeChecks(t.Context(), []string{"t"}, func(context.Context, transport.TransactionCheck) transport.Resolution {
				return transport.ResolutionUnknown
			})
		}()
		time.Sleep(time.Second)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("ServeChecks: %v, want ErrClosed", err)
		}
	})
}

// Ping waits for a connection until ctx ends.
func TestPingAwaitsAConnection(t *testing.T) {
	for _, tt := range []struct {
		name     string
		outage   time.Duration
		deadline time.Duration
		valid    bool
	}{
		{"back before the deadline", 5 * time.Second, 30 * time.Second, true},
		{"away", time.Hour, 30 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.stop()
				c := newClient(t, n, nil)
				timer := time.AfterFunc(tt.outage, s.start)
				defer timer.Stop()
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				begin := time.Now()
				err := c.Ping(ctx)
				if took := time.Since(begin); tt.valid && (err != nil || took < tt.outage) || !tt.valid && (err == nil || took != tt.deadline) {
					t.Errorf("error %v after %v", err, took)
				}
			})
		})
	}
}
