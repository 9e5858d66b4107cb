package tidegate

// Credentials are the access key of a client and its secret: the keys of RocketMQ's ACL, or those
// of a tidegate broker. The zero value means none.
//
// Over gRPC the client signs each request and does not send the secret. Over https it sends both.
// Over plain HTTP it sends a signature of each request's time instead of the secret, so the clocks
// of client and broker must agree within minutes.
type Credentials struct {
	AccessKey string
	SecretKey string

	// SessionToken belongs to temporary keys of RocketMQ. Empty means none. The tidegate broker and
	// its HTTP API have no temporary keys.
	SessionToken string
}
