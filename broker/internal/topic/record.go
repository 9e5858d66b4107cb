package topic

import (
	"encoding/json"
	"fmt"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Record is the stored form of a topic's settings.
type Record struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	settings.Topic
}

// Encode returns the bytes of the record.
func (r Record) Encode() ([]byte, error) { return json.Marshal(r) }

// DecodeRecord reads the record of the topic with that name, and sets the defaults of its settings.
func DecodeRecord(name string, v []byte) (r Record, err error) {
	if err = json.Unmarshal(v, &r); err == nil {
		err = r.Topic.Validate()
	}
	if err != nil {
		return r, fmt.Errorf("the settings of topic %q: %w", name, err)
	}
	r.Topic = r.Topic.WithDefaults()
	return r, nil
}

// A GroupRecord is the stored form of a consumer group's settings.
type GroupRecord struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	settings.Group
}

// Encode returns the bytes of the record.
func (r GroupRecord) Encode() ([]byte, error) { return json.Marshal(r) }

// DecodeGroupRecord reads the record of the group with that name, and sets the defaults of its
// settings.
func DecodeGroupRecord(name string, v []byte) (r GroupRecord, err error) {
	if err = json.Unmarshal(v, &r); err == nil {
		err = r.Group.WithDefaults().ValidateFor(name)
	}
	if err != nil {
		return r, fmt.Errorf("the settings of group %q: %w", name, err)
	}
	r.Group = r.Group.WithDefaults()
	return r, nil
}
