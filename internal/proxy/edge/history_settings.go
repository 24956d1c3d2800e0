package edge

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// HistorySettings say what a proxy adds to its records, and how long they are kept. Handlers with
// equal settings and the same database share a history.Writer.
type HistorySettings struct {
	Node   string // the name of the proxy; "" is that of HistoryOptions
	Region string // where it runs; "" is unknown

	Address history.AddressMode

	// How long the parts of the history are kept. 0 leaves what the database has.
	KeepAudit, KeepMinutes, KeepHours, KeepDays, KeepUsage time.Duration
}

const (
	wantAudit     = "off, denied, all, or sample and a percentage above 0% and up to 100%, as in sample 1%"
	wantAddress   = "full, prefix or off"
	wantRetention = "a duration from 1d to 100y, such as 90d, 12w or 7y"
	wantNodeName  = "a name of 1 to 100 bytes of UTF-8 without control characters"

	// maxNodeName is the longest name of a node or a region, in bytes.
	maxNodeName = 100

	day = 24 * time.Hour

	// retentionYear is the longest year, so that seven years are not cut short.
	retentionYear = 366 * day
	maxYears      = 100
)

// ParseAudit reads which requests are in the audit log: off, denied, all, or sample and a
// percentage. "" is unset.
func ParseAudit(text string, unset history.Audit) (history.Audit, error) {
	switch text {
	case "":
		return unset, nil
	case "off":
		return history.Audit{Level: history.AuditOff}, nil
	case "denied":
		return history.Audit{Level: history.AuditDenied}, nil
	case "all":
		return history.Audit{Level: history.AuditAll}, nil
	}
	words := strings.Fields(text)
	if len(words) == 2 && words[0] == "sample" && strings.HasSuffix(words[1], "%") {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(words[1], "%"), 64)
		if share := percent / 100; err == nil && !math.IsNaN(share) && share > 0 && share <= 1 {
			return history.Audit{Level: history.AuditSample, Share: share}, nil
		}
	}
	return history.Audit{}, &ratelimit.FieldError{Field: "audit", Value: text, Want: wantAudit}
}

// MoreAudit returns the one of two audits that records more requests.
func MoreAudit(a, b history.Audit) history.Audit {
	if b.Level > a.Level || b.Level == a.Level && b.Share > a.Share {
		return b
	}
	return a
}

// ParseAddressMode reads how much of the clients' addresses is in the audit log: full, prefix
// (the network) or off; "" is full.
func ParseAddressMode(text string) (history.AddressMode, error) {
	switch text {
	case "", "full":
		return history.AddressFull, nil
	case "prefix":
		return history.AddressPrefix, nil
	case "off":
		return history.AddressOff, nil
	}
	return history.AddressFull, &ratelimit.FieldError{Field: "audit_address", Value: text, Want: wantAddress}
}

// CheckNodeName checks the name of a node or of a region; "" is unset.
func CheckNodeName(field, text string) error {
	wrong := len(text) > maxNodeName || !utf8.ValidString(text)
	for _, c := range text {
		wrong = wrong || c < ' ' || c == 0x7f
	}
	if wrong {
		return &ratelimit.FieldError{Field: field, Value: text, Want: wantNodeName}
	}
	return nil
}

// SetRetention reads how long a part of history.RetentionNames is kept, and sets it; "" is unset.
func (s *HistorySettings) SetRetention(what, text string) error {
	keep, err := ParseRetention(what, text)
	if err != nil {
		return err
	}
	switch what {
	case "audit":
		s.KeepAudit = keep
	case "metrics_minute":
		s.KeepMinutes = keep
	case "metrics_hour":
		s.KeepHours = keep
	case "metrics_day":
		s.KeepDays = keep
	case "usage":
		s.KeepUsage = keep
	}
	return nil
}

// ParseRetention reads how long a part of the history is kept: a duration as
// ratelimit.ParseWindow takes it, or years, as in 7y; "" is 0, which is unset. A year is 366 days.
// what is the name of the part.
func ParseRetention(what, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	if strings.HasSuffix(text, "y") {
		years, err := strconv.Atoi(strings.TrimSuffix(text, "y"))
		if err == nil && years >= 1 && years <= maxYears {
			return time.Duration(years) * retentionYear, nil
		}
	} else if d, err := ratelimit.ParseWindow(text); err == nil && d >= day && d <= maxYears*retentionYear {
		return d, nil
	}
	return 0, &ratelimit.FieldError{Field: what, Value: text, Want: wantRetention}
}

// HistoryNeedsPostgres is the error of a history with MemoryDSN.
func HistoryNeedsPostgres() error {
	return &ratelimit.FieldError{Field: "dsn", Value: MemoryDSN, Want: "a Postgres URL or key=value pairs, or used with audit off: the history is in Postgres"}
}
