package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A counting client is one of a RocketMQ: its server continues the count of a letter's attempts,
// and allows most of them.
type counting struct {
	*rest.Client
	most, had int
}

func (c counting) Capabilities(string) transport.Capabilities { return transport.Capabilities{} }

func (c counting) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	return transport.ConsumerSettings{MaxAttempts: c.most}, nil
}

func (c counting) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	for _, d := range ds {
		d.Attempt += c.had
	}
	return ds, err
}

// If released letters count as attempts, a group with few attempts is rejected before it receives a
// letter. A letter in its last attempt is listed and can be sent back; if it stays, the listing
// ends with an error.
func TestQueueNeedsAttempts(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "a", "b")
		list := func(most, had int) string {
			q := p.queue()
			q.Transport = counting{p.rest, most, had}
			var seen []string
			for l, err := range deadletter.List(t.Context(), q, deadletter.Filter{}, false) {
				switch {
				case errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), "%DLQ%undertaker"):
					seen = append(seen, "error")
				case err != nil:
					t.Error(err)
				default:
					seen = append(seen, l.Message.ID)
				}
			}
			return fmt.Sprint(seen)
		}
		for _, tt := range []struct {
			most, had int
			want      string
		}{
			{17, 0, "[error]"}, {99, 0, "[error]"}, {100, 17, "[a b]"}, {1000, 998, "[a b]"}, {1000, 999, "[a b error]"}, {0, 999, "[a b]"}, {-1, 999, "[a b]"},
		} {
			got := list(tt.most, tt.had)
			assert.That(t, got == tt.want, "%d attempts, %d before: listed %s, want %s", tt.most, tt.had, got, tt.want)
		}
		q := p.queue()
		q.Transport = counting{p.rest, 1000, 999}
		report, err := deadletter.Redrive(t.Context(), q, deadletter.Options{Sender: p.rest, To: "orders", Journal: filepath.Join(t.TempDir(), "journal")})
		assert.That(t, err == nil && report.Redriven == 2, "redrive: %+v, %v, want both letters sent back", report, err)
		assert.Slices(t, "came back", bodies(p.receive("billing", "orders", 10)), []string{"a", "b"})
	})
}
