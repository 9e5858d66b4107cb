package broker

import (
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
)

// DeadLetterClasses returns a page of the classes of dead letters of a group. It reads only memory.
// The errors are those of DeadLetters.
func (b served) DeadLetterClasses(group string, q status.DeadLetterClassQuery) (status.DeadLetterClassPage, error) {
	if !b.calls.Begin() {
		return status.DeadLetterClassPage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.DeadLetterClassPage{}, err
	}
	p, err := b.letters.Classes(group, q.In, q.Topic, q.After, limit)
	out := status.DeadLetterClassPage{Letters: p.Letters, Classes: make([]status.DeadLetterClass, len(p.Classes)), Next: p.Next}
	for i := range p.Classes {
		out.Classes[i] = letterClass(&p.Classes[i], &p)
	}
	if p.Rest.Count > 0 {
		out.Other = new(letterClass(&p.Rest, &p))
	}
	return out, err
}

func letterClass(c *store.LetterClass, p *engine.ClassPage) status.DeadLetterClass {
	return status.DeadLetterClass{
		Fingerprint: c.Fingerprint, Topic: c.Topic, Reason: c.Reason, Count: c.Count, Share: float64(c.Count) / float64(p.Letters),
		First: c.First, Last: c.Last, MaxRedrives: c.MaxRedrives,
	}
}
