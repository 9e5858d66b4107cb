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
	l.mu.Lock()
	if l.calls == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.returned == nil {
		l.returned = make(chan struct{})
	}
	returned := l.returned
	l.mu.Unlock()
	select {
	case <-returned:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
