package messages

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"
)

// askingLease is the invisible time of a message with --then ask: a person reads it.
const askingLease = 5 * time.Minute

// An asker asks the user for the fate of each message.
type asker struct {
	r     *receiveCommand
	lines chan string // closed at the end of the input
}

func newAsker(ctx context.Context, r *receiveCommand) *asker {
	a := &asker{r, make(chan string)}
	go func() { // a read of a terminal cannot be interrupted
		defer close(a.lines)
		in := bufio.NewScanner(r.In)
		for in.Scan() {
			select {
			case a.lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

// ask returns the fate of the message that was printed last. Quit means that it is released, and
// that the command ends. The end of the input has the same effect.
func (a *asker) ask(ctx context.Context) (f fate, quit bool) {
	for {
		fmt.Fprint(a.r.Err, "[a]ck, [r]etry[=TIME], [d]ead[=REASON], [q]uit, or Enter to release: ")
		select {
		case line, ok := <-a.lines:
			f, quit, err := answer(line)
			if !ok || err == nil {
				return f, quit || !ok
			}
			a.r.Note("%v", err)
		case <-ctx.Done():
			return fate{name: "release"}, true
		}
	}
}

// answer reads an answer: a word or its first letter, with a value after "="; an empty one
// releases.
func answer(line string) (f fate, quit bool, err error) {
	word, value, hasValue := strings.Cut(strings.TrimSpace(line), "=")
	if full := map[string]string{"": "release", "a": "ack", "r": "retry", "d": "dead", "q": "quit"}[word]; full != "" {
		word = full
	}
	if word == "quit" {
		return fate{name: "release"}, true, nil
	}
	if hasValue {
		word += "=" + value
	}
	f, err = parseFate(word)
	return f, false, err
}
