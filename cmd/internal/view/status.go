package view

import (
	"fmt"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A Status is the state of a server and what is wrong with it.
type Status struct {
	Server   string    `json:"server"`
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason,omitempty"` // why it is not ready
	Topics   int       `json:"topics"`
	Groups   int       `json:"groups"`
	Stored   int64     `json:"stored_messages"`
	Bytes    int64     `json:"stored_bytes"`
	Backlog  int64     `json:"backlog_messages"` // of all groups
	Waiting  int64     `json:"waiting_retry"`
	Problems []Problem `json:"problems"`
}

// Fill sets the totals and the problems.
func (s *Status) Fill(topics []status.Topic, groups []status.Group, throttles status.Throttles) {
	s.Topics, s.Groups = len(topics), len(groups)
	for _, t := range topics {
		s.Stored += t.StoredMessages
		s.Bytes += t.StoredBytes
	}
	for _, g := range groups {
		for _, sub := range g.Topics {
			s.Backlog += sub.Backlog.Messages
			s.Waiting += sub.WaitingRetry
		}
	}
	stored := map[string]int64{}
	for _, t := range topics {
		stored[t.Name] = t.StoredMessages
	}
	s.Problems = append(Throttled(throttles), Troubled(groups, stored)...)
}

// Fields are the names and values of the screen above the problems.
func (s *Status) Fields() []output.Field {
	state := "ready"
	if !s.Ready {
		state = "not ready: " + s.Reason
	}
	return []output.Field{
		{Name: "broker", Value: s.Server},
		{Name: "state", Value: state},
		{Name: "topics", Value: s.Topics},
		{Name: "groups", Value: s.Groups},
		{Name: "stored", Value: fmt.Sprintf("%s messages, %v", output.Number(s.Stored), output.Bytes(s.Bytes))},
		{Name: "backlog", Value: fmt.Sprintf("%s messages of all groups, %s of them wait for a retry", output.Number(s.Backlog), output.Number(s.Waiting))},
	}
}

// ProblemColumns are the columns of the problems.
var ProblemColumns = []output.Column[Problem]{
	{Name: "WRONG NOW", Cell: func(p Problem) any { return p.Kind }},
	{Name: "SUBJECT", Cell: func(p Problem) any { return p.Subject }},
	{Name: "WHAT", Cell: func(p Problem) any { return p.Text }},
	{Name: "NEXT", Cell: func(p Problem) any { return p.Next }},
}
