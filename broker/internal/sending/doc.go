// Package sending stores the messages of a send: it checks them, finds duplicates, assigns offsets
// and writes them in one batch. Messages of one message group keep their order: if a limit rejects
// one, the later ones are rejected too.
package sending
