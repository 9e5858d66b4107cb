// Package endtoend has the tests of producer, consumer and broker together, in virtual time where
// no socket is needed, and what several of them share.
package endtoend
