package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
)

// HeaderIfMatch is the header of a change on the condition that the settings have a revision.
const HeaderIfMatch = "If-Match"

// SetETag sets the header ETag to the revision of settings. An empty revision sets nothing.
func SetETag(w http.ResponseWriter, revision string) {
	if revision != "" {
		w.Header().Set("ETag", `"`+revision+`"`)
	}
}

// IfMatch returns the condition of the header If-Match on the revision of the topic or group, which
// is empty if there is none. Without the header it returns nil. The condition fails with 42800; the
// error of a malformed header is 40000.
func IfMatch(r *http.Request, what, name string) (may func(revision string) error, err error) {
	given := r.Header.Values(HeaderIfMatch)
	if len(given) == 0 {
		return nil, nil //nolint:nilnil // no condition
	}
	text := strings.Join(given, ", ")
	wanted, ok := revisions(text)
	if !ok {
		return nil, refusal.New(tidegate.CodeBadRequest, HeaderIfMatch, fmt.Sprintf(
			`the header If-Match is %.100q; give the ETag of a response with its quotes, several of them with commas between, or *`, text))
	}
	return func(now string) error {
		switch {
		case now == "":
			return refusal.New(protocol.CodePreconditionFailed, name, fmt.Sprintf(
				"the %s %s does not exist, but If-Match demands that it does; leave If-Match out to create it", what, name))
		case text == "*" || slices.Contains(wanted, now):
			return nil
		}
		return refusal.New(protocol.CodePreconditionFailed, name, fmt.Sprintf(
			`the settings of the %s %s have the revision %q, and If-Match demands %.100s: another change came first; read the %s again, and repeat the change with its ETag`,
			what, name, now, text, what))
	}, nil
}

// revisions returns the strong entity tags of a list (RFC 9110, 13.1.1), which alone can match, and
// whether the list is well formed.
func revisions(list string) (strong []string, ok bool) {
	if list == "*" {
		return nil, true
	}
	for tag := range strings.SplitSeq(list, ",") {
		tag, weak := strings.CutPrefix(strings.TrimSpace(tag), "W/")
		if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' || strings.Contains(tag[1:len(tag)-1], `"`) {
			return nil, false
		}
		if !weak {
			strong = append(strong, tag[1:len(tag)-1])
		}
	}
	return strong, true
}
