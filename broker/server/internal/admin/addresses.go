package admin

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// The administration of address settings (Artemis: undelivered messages). In a path, the pattern's
// '#' is %23.

// aPattern is the subject of address settings, in errors.
const aPattern = "pattern"

// ListAddressSettings returns the address settings of all patterns.
func (h *Handlers) ListAddressSettings(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Settings []status.Address `json:"address_settings"`
	}{notNil(h.engine.AllAddressSettings())}, nil
}

// GetAddressSettings returns the address settings of one pattern.
func (h *Handlers) GetAddressSettings(w http.ResponseWriter, r *http.Request) (int, any, error) {
	a, err := h.engine.AddressSettings(r.PathValue("match"))
	web.SetETag(w, a.Revision)
	return http.StatusOK, a, err
}

// PutAddressSettings sets the address settings of a pattern.
func (h *Handlers) PutAddressSettings(w http.ResponseWriter, r *http.Request) (int, any, error) {
	match := r.PathValue("match")
	var a settings.Address
	if err := web.ReadJSON(w, r, &a); err != nil {
		return 0, nil, err
	}
	may, err := web.IfMatch(r, aPattern, match)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.AddressSettings(match)
	set, err := h.engine.PutAddressSettingsIf(r.Context(), match, a, may)
	web.SetETag(w, set.Revision)
	return putStatus(missing), set, err
}

// DeleteAddressSettings removes the address settings of a pattern.
func (h *Handlers) DeleteAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	match := r.PathValue("match")
	may, err := web.IfMatch(r, aPattern, match)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.engine.DeleteAddressSettingsIf(r.Context(), match, may)
}

// GetTopicAddressSettings returns the address settings that apply to a topic, and the patterns that
// they come from.
func (h *Handlers) GetTopicAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusOK, h.engine.TopicAddressSettings(r.PathValue("topic")), nil
}
