package settings

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// History says what a proxy adds to its records, and how long the database keeps them.
type History struct {
	Address AddressMode

	// KeepAudit and KeepUsage limit the age of the audit log and of the metrics by day. 0 means as the
	// database has it.
	KeepAudit, KeepUsage time.Duration
}

// Audit says which requests of a limit the audit log has.
type Audit struct {
	Level Level
	Share float64 // of AuditSample: from above 0 to 1
}

// Level selects the requests that the audit log has.
type Level uint8

const (
	// AuditOff selects none.
	AuditOff Level = iota
	// AuditDenied selects those that were refused, that a shadow rule would have refused, or that have
	// no decision.
	AuditDenied
	// AuditSample selects the same as AuditDenied, and a random share of those that passed.
	AuditSample
	// AuditAll selects all.
	AuditAll
)

// AddressMode selects how addresses are written to the audit log.
type AddressMode uint8

const (
	// AddressFull keeps the whole address.
	AddressFull AddressMode = iota
	// AddressPrefix keeps the first 24 bits of an IPv4 address, or 48 of an IPv6 address.
	AddressPrefix
	// AddressOff keeps nothing.
	AddressOff
)

const (
	wantAudit    = "off, denied, all, or sample and a percentage above 0% and up to 100%, as in sample 1%"
	wantNodeName = "a name of 1 to 100 bytes of UTF-8 without control characters"

	// maxNodeName is the longest name of a node or a region, in bytes.
	maxNodeName = 100
)

// ParseAudit reads which requests are in the audit log: off, denied, all, or sample and a percentage; ""
// is unset.
func ParseAudit(text string, unset Audit) (Audit, error) {
	switch text {
	case "":
		return unset, nil
	case "off":
		return Audit{Level: AuditOff}, nil
	case "denied":
		return Audit{Level: AuditDenied}, nil
	case "all":
		return Audit{Level: AuditAll}, nil
	}
	words := strings.Fields(text)
	if len(words) == 2 && words[0] == "sample" {
		if share, err := readShare(words[1], math.SmallestNonzeroFloat64, 1); err == nil {
			return Audit{Level: AuditSample, Share: share}, nil
		}
	}
	return Audit{}, &ratelimit.FieldError{Field: "audit", Value: text, Want: wantAudit}
}

// MoreAudit returns the one of two audits that records more requests.
func MoreAudit(a, b Audit) Audit {
	if b.Level > a.Level || b.Level == a.Level && b.Share > a.Share {
		return b
	}
	return a
}

// readAddressMode reads History.Address.
func readAddressMode(to *Settings, text string) error {
	for i, name := range []string{"full", "prefix", "off"} {
		if text == name {
			to.History.Address = AddressMode(i)
			return nil
		}
	}
	return errWant
}

// nodeName returns a Read of the name of a node or of a region.
func nodeName(field func(*Settings) *string) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		*field(to) = text
		control := func(c rune) bool { return c < ' ' || c == 0x7f }
		if len(text) > maxNodeName || !utf8.ValidString(text) || strings.IndexFunc(text, control) >= 0 {
			return errWant
		}
		return nil
	}
}

// retention returns a Read of how long a part of the history is kept.
func retention(field func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		if text == "" {
			return nil
		}
		age, err := ParseAge(text)
		if err != nil || age < 24*time.Hour || age > MaxAge {
			return errWant
		}
		*field(to) = age
		return nil
	}
}
