package admin

import (
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// A Snapshot is a consistent copy of the data directory.
type Snapshot struct {
	Path string `json:"path"` // absolute
}

// PostSnapshot writes a snapshot into a new directory below the configured one. The directory is
// named for the time, so that a list of names is in the order of the snapshots.
func (h *Handlers) PostSnapshot(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	if h.snapshots == "" {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "snapshot", "no directory for snapshots is configured; set snapshot_dir (--snapshot-dir) to a directory on the file system of the data")
	}
	dir, err := filepath.Abs(h.snapshots) // the client has another working directory
	if err != nil {
		return 0, nil, fmt.Errorf("the path of the snapshot: %w", err)
	}
	s := Snapshot{filepath.Join(dir, "snapshot-"+time.Now().UTC().Format("20060102T150405.000000Z"))}
	return http.StatusCreated, s, h.engine.Snapshot(r.Context(), s.Path)
}
