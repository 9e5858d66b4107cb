package ledger

import "context"

// BeginCall notes a call outside the queue, such as a transaction. It returns false if the ledger
// is closed; otherwise EndCall must follow.
func (l *Ledger[T]) BeginCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls++
	return true
}

// EndCall notes the end of a call.
func (l *Ledger[T]) EndCall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls--; l.calls == 0 && l.returned != nil {
		close(l.returned)
		l.returned = nil
	}
}

// AwaitCalls waits until no call is under way, or returns the cause of ctx. Close comes first.
func (l *Ledger[T]) AwaitCalls(ctx context.Context) error {
	select {
	case <-l.allReturned():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// allReturned returns a channel that is closed once no call is under way.
func (l *Ledger[T]) allReturned() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	returned := l.returned
	if returned == nil {
		returned = make(chan struct{})
		if l.calls == 0 {
			close(returned)
		} else {
			l.returned = returned
		}
	}
	return returned
}

// HoldCall adds a request of a call to Running. It returns false after Stop.
func (l *Ledger[T]) HoldCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.Running.Add(1)
	return true
}

// Stop makes HoldCall return false. From then on nothing but messages without a result adds to
// Running, so that it can be waited for. Close comes first.
func (l *Ledger[T]) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}
