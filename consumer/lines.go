package consumer

import "slices"

// lines keep deliveries of a FIFO group in order: those of one message group stand in one
// line, and only the first of a line may be handled.
//
// When it fails, all that stand behind it are released, and the server delivers the failed one
// first. Deliveries that come later are not behind it: the server hands out nothing of a message
// group while an earlier message of it is out, except together with it in one receive. They
// therefore start a line of their own.
type lines map[string]*line

// A line is the deliveries of one message group, the first in front.
type line struct {
	group string
	items []*item
}

// join puts a delivery at the end of its line, and reports whether it is the first there.
func (l lines) join(it *item) (first bool) {
	g := it.current.MessageGroup
	if g == "" {
		return true
	}
	ln := l[g]
	if ln == nil {
		ln = &line{group: g}
		l[g] = ln
	}
	ln.items = append(ln.items, it)
	it.line = ln
	return len(ln.items) == 1
}

// close has deliveries that come later start another line. It is called before the server
// learns that the delivery was not consumed: from then on it may deliver the message again.
func (l lines) close(it *item) {
	if it.line != nil && l[it.line.group] == it.line {
		delete(l, it.line.group)
	}
}

// leave takes a delivery out of its line. If it was consumed, next is the one that may be
// handled now, nil for none. Otherwise behind are those that were received behind it, which
// leave the line too.
func (l lines) leave(it *item, consumed bool) (next *item, behind []*item) {
	ln := it.line
	if ln == nil {
		return nil, nil
	}
	it.line = nil
	i := slices.Index(ln.items, it)
	if !consumed {
		behind = slices.Clone(ln.items[i+1:])
		for _, b := range behind {
			b.line = nil
		}
		clear(ln.items[i:])
		ln.items = ln.items[:i]
		if l[ln.group] == ln {
			delete(l, ln.group)
		}
		return nil, behind
	}
	ln.items = slices.Delete(ln.items, i, i+1)
	if len(ln.items) == 0 {
		if l[ln.group] == ln {
			delete(l, ln.group)
		}
		return nil, nil
	}
	if i == 0 {
		next = ln.items[0]
	}
	return next, nil
}
