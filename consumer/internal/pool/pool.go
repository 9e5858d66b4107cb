// Package pool bounds the goroutines that run short jobs.
package pool

import "sync"

// A Pool runs jobs in goroutines, at most limit at the same time, which end when there is
// nothing to do.
type Pool struct {
	limit int
	start func(func())

	mu      sync.Mutex
	running int
	jobs    []func()
}

// New returns a pool whose goroutines begin by start.
func New(limit int, start func(func())) *Pool { return &Pool{limit: limit, start: start} }

// Do runs a job, soon.
func (p *Pool) Do(job func()) {
	p.mu.Lock()
	if p.running == p.limit {
		p.jobs = append(p.jobs, job)
		p.mu.Unlock()
		return
	}
	p.running++
	p.mu.Unlock()
	p.start(func() {
		for job != nil {
			job()
			job = p.next()
		}
	})
}

func (p *Pool) next() (job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.jobs) == 0 {
		p.running--
		return nil
	}
	job = p.jobs[0]
	p.jobs[0] = nil
	p.jobs = p.jobs[1:]
	return job
}
