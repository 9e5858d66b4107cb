package administration

import (
	"encoding/json"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/declare"
)

// changed returns settings with the changes of a file and of arguments, and the changes alone.
func changed[T any](c *call.Call, before T, file string, args []string) (wanted T, patch map[string]any, err error) {
	if patch, err = declare.Patch[T](file, args); err == nil {
		var text []byte
		if text, err = json.Marshal(patch); err == nil {
			wanted, err = declare.Merge(before, text)
		}
	}
	if v, ok := any(wanted).(interface{ Validate() error }); ok && err == nil {
		err = v.Validate()
	}
	if err != nil {
		return before, nil, c.Usage(err)
	}
	return wanted, patch, nil
}
