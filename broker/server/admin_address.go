package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/web"
)

// The administration of address settings (Artemis: undelivered messages). In a path, the pattern's
// '#' is %23.

func (s *Server) listAddressSettings(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Settings []broker.AddressSetting `json:"address_settings"`
	}{notNil(s.b.AllAddressSettings())}, nil
}

func (s *Server) getAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	a, err := s.b.AddressSettings(r.PathValue("match"))
	return http.StatusOK, a, err
}

func (s *Server) putAddressSettings(w http.ResponseWriter, r *http.Request) (int, any, error) {
	match := r.PathValue("match")
	var a broker.AddressSettings
	if err := web.ReadJSON(w, r, &a); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.AddressSettings(match)
	set, err := s.b.PutAddressSettings(r.Context(), match, a)
	return putStatus(missing), set, err
}

func (s *Server) deleteAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteAddressSettings(r.Context(), r.PathValue("match"))
}

type topicAddressSettings struct {
	Topic   string   `json:"topic"`
	Matches []string `json:"matches"` // the first goes before the others
	broker.AddressSettings
}

// getTopicAddressSettings tells what holds for a topic, and by which patterns.
func (s *Server) getTopicAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	topic := r.PathValue("topic")
	a, matches := s.b.TopicAddressSettings(topic)
	return http.StatusOK, topicAddressSettings{topic, matches, a}, nil
}
