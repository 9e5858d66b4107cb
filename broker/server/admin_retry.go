package server

import (
	"context"
	"net/http"
	"time"

	"github.com/tidegate/tidegate/broker"
)

type reconsumeRequest struct {
	handleRequest

	Delay broker.Duration `json:"delay"`
	Level int             `json:"level"`
}

// reconsumeLater has a delivery consumed later through the group's retry
// topic: after a delay, after a level's delay, or, with neither, after that of
// the next level (seed 001).
func (s *Server) reconsumeLater(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req reconsumeRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if err := s.permitReconsume(r, d); err != nil {
		return 0, nil, err
	}
	var out broker.Reconsumed
	call := Call{Op: "ReconsumeLater", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	err = s.through(r.Context(), call, func(ctx context.Context) (err error) {
		out, err = s.b.ReconsumeLater(ctx, d, broker.ReconsumeMode{Delay: time.Duration(req.Delay), Level: req.Level})
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, out, nil
}

type negativeAckRequest struct {
	handleRequest

	Delay broker.Duration `json:"delay"`
}

// negativeAcknowledge has a delivery delivered again after a delay, or after the
// group's.
func (s *Server) negativeAcknowledge(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req negativeAckRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	call := Call{Op: "NegativeAck", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	return noContent(s.through(r.Context(), call, func(ctx context.Context) error {
		return s.b.NegativeAck(ctx, d, time.Duration(req.Delay))
	}))
}
