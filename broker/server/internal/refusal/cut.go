package refusal

// A Cut is the failure of a request that gets no response: over gRPC it ends with Status, and over
// HTTP its connection is cut.
type Cut struct{ Status error }

// Error implements error.
func (e *Cut) Error() string { return e.Status.Error() }
