package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// ClientColumns returns the columns of clients list and top --clients. at is the time of the
// broker.
func ClientColumns(at time.Time) []output.Column[status.Client] {
	return []output.Column[status.Client]{
		{Name: "ID", Cell: func(c status.Client) any { return c.ID }},
		{Name: "KEY", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Key, "-") }},
		{Name: "KIND", Cell: func(c status.Client) any { return c.Kind }},
		{Name: "LANGUAGE", Cell: func(c status.Client) any { return cmp.Or(c.Language, "-") }},
		{Name: "VERSION", Cell: func(c status.Client) any { return cmp.Or(c.Version, "-") }},
		{Name: "OUTDATED", Wide: true, Cell: func(c status.Client) any { return map[bool]string{true: "yes", false: "no"}[c.Outdated] }},
		{Name: "GROUP", Cell: func(c status.Client) any { return cmp.Or(c.Group, "-") }},
		{Name: "TOPICS", Least: 40, Cell: func(c status.Client) any { return topicsOf(&c) }},
		{Name: "FILTERS", Wide: true, Least: 40, Cell: func(c status.Client) any { return filtersOf(&c) }},
		{Name: "SEEN", Cell: func(c status.Client) any { return max(at.Sub(c.LastSeen), 0) }},
		{Name: "SINCE", Wide: true, Cell: func(c status.Client) any { return c.Since }},
		{Name: "WAITING", Cell: func(c status.Client) any { return c.Waiting }},
		{Name: "FLIGHT", Cell: func(c status.Client) any { return c.Inflight }},
		{Name: "HOST", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Host, "-") }},
		{Name: "ADDRESS", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Address, "-") }},
	}
}

// topicsOf returns the first topics of a client, and the number of the others.
func topicsOf(c *status.Client) string {
	const most = 3
	shown := c.Topics[:min(len(c.Topics), most)]
	text := strings.Join(shown, ",")
	if more := len(c.Topics) - len(shown) + c.Hidden; more > 0 {
		text += fmt.Sprintf(" +%d", more)
	}
	return cmp.Or(strings.TrimSpace(text), "-")
}

// filtersOf returns the filters of a client with their topics.
func filtersOf(c *status.Client) string {
	var all []string
	for _, topic := range slices.Sorted(maps.Keys(c.Filters)) {
		all = append(all, topic+": "+c.Filters[topic])
	}
	return cmp.Or(strings.Join(all, "; "), "-")
}

// clientOrders are the values of --by for clients.
var clientOrders = map[string]func(x, y *status.Client) int{
	"inflight": func(x, y *status.Client) int { return cmp.Compare(y.Inflight, x.Inflight) },
	"waiting":  func(x, y *status.Client) int { return cmp.Compare(y.Waiting, x.Waiting) },
	"idle":     func(x, y *status.Client) int { return x.LastSeen.Compare(y.LastSeen) },
}

// SortClients orders clients by inflight, waiting or idle, the largest first.
func SortClients(rows []status.Client, by string, reverse bool) error {
	order := clientOrders[by]
	if order == nil {
		return fmt.Errorf("--by is %q; with --clients it is one of inflight, waiting, idle", by)
	}
	slices.SortStableFunc(rows, func(x, y status.Client) int {
		n := order(&x, &y)
		if reverse {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(x.ID, y.ID))
	})
	return nil
}

// A ClientFrame is the content of a screen of top --clients.
type ClientFrame struct {
	At       time.Time              `json:"time"`
	Interval string                 `json:"interval"`
	Total    int                    `json:"total"`
	Versions []status.ClientVersion `json:"versions"`
	Clients  []status.Client        `json:"clients"`
}

// A ClientScreen is the whole screen of top --clients.
type ClientScreen struct {
	Server        string
	Frame         ClientFrame
	By            string
	Width, Height int // of the terminal
	Paused        bool
	Failed        error // of the last request; the frame is an older one

	shown map[string]bool // columns
}

// Write writes the lines of the screen, at most height lines of at most width columns.
func (s *ClientScreen) Write(w io.Writer, o output.Options) error {
	state := s.Frame.At.UTC().Format("15:04:05")
	switch {
	case s.Failed != nil:
		state += "  NO ANSWER: " + output.Safe(s.Failed.Error())
	case s.Paused:
		state += "  paused"
	}
	var inflight, waiting int64
	for i := range s.Frame.Clients {
		inflight, waiting = inflight+s.Frame.Clients[i].Inflight, waiting+s.Frame.Clients[i].Waiting
	}
	screen := newScreen(s.Width, s.Height)
	screen.prose("%s  every %s  %s", output.Safe(s.Server), s.Frame.Interval, state)
	screen.prose("%s; in flight %s, waiting receives %s", output.Count(int64(s.Frame.Total), "client"), output.Number(inflight), output.Number(waiting))
	screen.prose("versions: %s", versions(s.Frame.Versions))
	screen.lines = append(screen.lines, "")
	if s.shown == nil {
		s.shown = map[string]bool{}
	}
	o.Shown = s.shown
	list := output.List[status.Client]{Rows: s.Frame.Clients[:min(len(s.Frame.Clients), s.Height)], Columns: ClientColumns(s.Frame.At)}
	table, err := screen.fit(o, list.Fit)
	if err != nil {
		return err
	}
	screen.rows(table, "no clients", s.Frame.Total, func(more string) string { return "by " + s.By + more }, "p pause  q quit")
	return writeScreen(w, screen.lines, s.Width, s.Height)
}

// versions lists versions with their clients: "GO 5.1.4 (12), JAVA 5.0.4 (1, outdated)".
func versions(list []status.ClientVersion) string {
	var parts []string
	for _, v := range list {
		note := ""
		if v.Outdated {
			note = ", outdated"
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s%s)", output.Safe(v.Language), output.Safe(v.Version), output.Number(v.Clients).Grouped(), note))
	}
	return cmp.Or(strings.Join(parts, ", "), "not known")
}
