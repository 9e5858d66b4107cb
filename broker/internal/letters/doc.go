// Package letters has the operations on stored dead letters: it lists them, sends them back to
// their topics (redrive) and removes them (purge).
//
// One redrive, purge or other removal runs at a time ([Letters.Hold]). Each of them writes in
// chunks. A redrive adds a message to its topic and removes the dead letter in the same write, so
// neither a crash nor a repetition creates a second copy.
package letters
