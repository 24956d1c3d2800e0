package caddymodule

import (
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// History configures which requests are recorded, and for how long. Requests do not wait for their records.
type History struct {
	HistorySettings

	// How long the history is kept. Upkeep deletes older rows. Default: the setting in the database. A new
	// database keeps the audit log for 90 days and the usage for 7 years.
	Retention *Retention `json:"retention,omitempty"`
}

// compile validates the settings. Errors are *ratelimit.FieldError with the names of Caddyfile subdirectives.
// It returns nil for a nil History.
func (h *History) compile() (*settings.History, error) {
	if h == nil {
		return nil, nil
	}
	var read settings.Settings
	if err := settings.Read(settings.HistoryTable, Values(h), &read); err != nil {
		return nil, err
	}
	if err := settings.Read(settings.RetentionTable, Values(h.Retention), &read); err != nil {
		return nil, fmt.Errorf("retention: %w", err)
	}
	return &read.History, nil
}
