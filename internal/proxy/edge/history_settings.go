package edge

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// HistorySettings say what a proxy adds to its records, and how long they are kept. Handlers with
// equal settings and the same database share a history.Writer.
type HistorySettings struct {
	Address history.AddressMode

	// How long the audit log and the usage are kept. 0 leaves what the database has.
	KeepAudit, KeepUsage time.Duration
}

const (
	wantAudit    = "off, denied, all, or sample and a percentage above 0% and up to 100%, as in sample 1%"
	wantNodeName = "a name of 1 to 100 bytes of UTF-8 without control characters"

	// maxNodeName is the longest name of a node or a region, in bytes.
	maxNodeName = 100
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
	if len(words) == 2 && words[0] == "sample" {
		if share, err := readShare(words[1], math.SmallestNonzeroFloat64, 1); err == nil {
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

// readAddressMode reads how much of the clients' addresses is in the audit log.
func readAddressMode(to *Settings, text string) error {
	mode, known := map[string]history.AddressMode{"full": history.AddressFull, "prefix": history.AddressPrefix, "off": history.AddressOff}[text]
	if !known {
		return errWant
	}
	to.History.Address = mode
	return nil
}

// nodeName reads the name of a node or of a region.
func nodeName(field func(*Settings) *string) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		*field(to) = text
		if len(text) > maxNodeName || !utf8.ValidString(text) {
			return errWant
		}
		for _, c := range text {
			if c < ' ' || c == 0x7f {
				return errWant
			}
		}
		return nil
	}
}

// retention reads how long a part of the history is kept, as settings.ParseAge takes it.
func retention(field func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		if text == "" {
			return nil
		}
		age, err := settings.ParseAge(text)
		if err != nil || age < 24*time.Hour || age > settings.MaxAge {
			return errWant
		}
		*field(to) = age
		return nil
	}
}

// HistoryNeedsPostgres is the error of a history with MemoryDSN.
func HistoryNeedsPostgres() error {
	return &ratelimit.FieldError{Field: "dsn", Value: MemoryDSN, Want: "a Postgres URL or key=value pairs, or used with audit off: the history is in Postgres"}
}
