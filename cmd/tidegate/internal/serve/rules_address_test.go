package serve

import (
	"slices"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/internal/assert"
)

// Address settings of a file reach the broker, and a change of the file changes them.
// Artemis: undelivered messages: "Delayed redelivery is defined in the address-setting
// configuration"
// Artemis: undelivered messages: "Dead letter address is defined in the address-setting
// configuration"
func TestPutAddressSettings(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	defer b.Close()
	apply := func(text string, want ...string) {
		t.Helper()
		c, err := merge("f", []byte(text), nil, nil)
		assert.Must(t, err)
		changed, err := put(t.Context(), c, b)
		assert.That(t, err == nil && slices.Equal(changed, want), "changed %q, %v, want %q", changed, err, want)
		assert.Equal(t, "declared are", len(c.declared()), len(c.addresses))
	}
	apply("address_settings:\n  '#': {redelivery-delay: 5s}\n  orders.*: {max-delivery-attempts: 3, dead-letter-address: DLA}", "address_settings.#", "address_settings.orders.*")
	apply("address_settings:\n  '#': {redelivery-delay: 5000}\n  orders.*: {max-delivery-attempts: 3}", "address_settings.orders.*")
	s := b.TopicAddressSettings("orders.eu")
	assert.That(t, *s.RedeliveryDelay == 5000 && *s.MaxDeliveryAttempts == 3 && s.DeadLetterAddress == nil && len(s.Matches) == 2, "orders.eu has %+v", s)
}
