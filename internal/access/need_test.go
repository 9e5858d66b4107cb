package access

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The texts of rejections name the missing permission.
func TestTextsOfNeeds(t *testing.T) {
	for _, c := range []struct {
		need Need
		want string
	}{
		{Need{}, `do this`},
		{Signed(), `do anything`},
		{ToSend("orders"), `send to topic "orders"`},
		{ToReceive("orders", "billing"), `receive from topic "orders" as group "billing"`},
		{AsGroup("billing"), `receive as group "billing"`},
		{ToUse("orders"), `use topic "orders"`},
		{OnTopic(Observe, "orders"), `observe topic "orders"`},
		{OnTopic(Admin, "orders"), `administer topic "orders"`},
		{OnGroup(Admin, "billing"), `administer group "billing"`},
		{OnBoth(Observe, "orders", "billing"), `observe group "billing" on topic "orders"`},
		{OnServer(Admin), `administer the whole broker`},
		{ToSendAnywhere(), `send to any topic`},
	} {
		if got := c.need.String(); got != c.want {
			t.Errorf("%#v: %s, want %s", c.need, got, c.want)
		}
	}
	assert.Equal(t, "an anonymous client is", (Identity{}).String(), "anonymous")
	assert.Equal(t, "the key app is", (Identity{key: "app"}).String(), "app")
}
