// Package refusal has the errors of rejected requests, for gRPC and HTTP: the code, the text and
// the delay of an error, and the bounds that both protocols have in common.
package refusal
