package httpapi

import "fmt"

// A Cursor is the place of a loop over pages. The zero value is the first page. A loop that starts
// elsewhere sets After.
//
// Advance notices a server that repeats its cursors, for example a faulty one or a proxy that
// responds with an old page; the loop would never end. It keeps one earlier cursor and replaces it
// after 1, 2, 4 … pages (Brent's algorithm), so a cycle of n cursors is noticed within 3n pages
// after its begin, with the memory of one cursor.
type Cursor struct {
	After string // of the next request; empty means the first page

	kept         string
	pages, until int // since kept was replaced, and at which it is replaced again
}

// Advance moves to the page that next of the last response names, and returns false after the last
// page. The error is that of a server that repeats its cursors.
func (c *Cursor) Advance(next string) (more bool, err error) {
	if next == "" {
		c.After = ""
		return false, nil
	}
	if next == c.After || next == c.kept {
		return false, fmt.Errorf("the server responded with the cursor %.100q again, so the pages after it would repeat without end; "+
			"the list is not complete. Look for a fault of the server, or of a proxy before it", next)
	}
	c.After = next
	if c.pages++; c.pages >= c.until {
		c.kept, c.pages, c.until = next, 0, max(1, 2*c.until)
	}
	return true, nil
}
