package gather

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The events: a letter adds an item, whose size in bytes is its place in the alphabet; "." lets
// 10 ms pass; "/" ends a batch; "!" is the end of all waits; "-" removes the last letter's item.
func TestFormer(t *testing.T) {
	three := Limits{Items: 3, Bytes: 100, Wait: 30 * time.Millisecond, Batches: 2}
	for _, tt := range []struct {
		name   string
		limits Limits
		events string
		want   string // the batches, with their times in 10 ms
	}{
		{"a full batch begins at once", three, "abc", "0:abc"},
		{"a batch that is not full waits", three, "ab..", ""},
		{"until its first item has waited", three, "a.b..c", "3:ab"},
		{"the next batch waits anew", three, "abc..d..", "0:abc"},
		{"from its own first item", three, "abc..d...", "0:abc 5:d"},
		{"two batches at a time", three, "abcabcabc", "0:abc 0:abc"},
		{"the third one begins with the end of one", three, "abcabcabc./", "0:abc 0:abc 1:abc"},
		{"items that waited for a batch wait no longer", three, "abcabca...../", "0:abc 0:abc 5:a"},
		{"a waiting batch is filled meanwhile", three, "abcabca.....b/", "0:abc 0:abc 5:ab"},
		{"bytes", Limits{Items: 9, Bytes: 5, Wait: time.Second, Batches: 9}, "bbb", "0:bb"},
		{"exactly the bytes", Limits{Items: 9, Bytes: 4, Wait: time.Second, Batches: 9}, "bb", "0:bb"},
		{"an item above the bytes is a batch of its own", Limits{Items: 9, Bytes: 5, Wait: time.Second, Batches: 9}, "az", "0:a 0:z"},
		{"no wait", Limits{Items: 9, Bytes: 100, Batches: 1}, "abc/", "0:a 0:bc"},
		{"the end of all waits", three, "ab.!", "1:ab"},
		{"and those after it", three, "!ab", "0:a 0:b"},
		{"a removed item", three, "ab-c...", "3:ac"},
		{"the removal of the first item", three, "a-.b...", "4:b"},
		{"nothing waits", three, "....", ""},
	} {
		f := former[string]{limits: tt.limits}
		now := time.Unix(0, 0)
		var got []string
		last := ""
		for e := range strings.SplitSeq(tt.events, "") {
			switch e {
			case ".":
				now = now.Add(10 * time.Millisecond)
			case "/":
				f.running--
			case "!":
				f.hurry = true
			case "-":
				if !f.remove(last) {
					t.Errorf("%s: %s is not there", tt.name, last)
				}
			default:
				f.add(e, int(e[0]-'a')+1, now)
				last = e
			}
			for {
				batch, wake := f.next(now)
				if batch == nil {
					if !wake.IsZero() && !wake.After(now) {
						t.Errorf("%s: it is to be woken %v ago", tt.name, now.Sub(wake))
					}
					break
				}
				got = append(got, fmt.Sprintf("%d:%s", now.Sub(time.Unix(0, 0))/(10*time.Millisecond), strings.Join(batch, "")))
			}
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %q makes the batches %q, want %q", tt.name, tt.events, text, tt.want)
		}
	}
}
