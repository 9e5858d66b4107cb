// Package refusal is what a request is told that is not carried out, on either
// wire: the error with its code, its text, how long to wait, and the bounds
// that gRPC and HTTP have in common.
package refusal
