package option

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Retention sets how long the database keeps a part of the history.
type Retention struct {
	What string        // the part: audit or metrics_day
	Keep time.Duration // 24 hours or more
}

// Audit selects the requests of a limit that are in the audit log.
type Audit struct {
	Level Level
	Share float64 // for AuditSample, the fraction of the requests that passed: 0 < Share <= 1
}

// RulePrefix begins the prefix of each limit of a rule: "rule/NAME/LIMIT", as rate_limit_prefix in SQL.
const RulePrefix = "rule/"

// Level selects the requests that are in the audit log.
type Level uint8

const (
	// AuditOff selects no requests.
	AuditOff Level = iota
	// AuditDenied selects requests that were refused, that a shadow rule would have refused, or that have no
	// decision.
	AuditDenied
	// AuditSample selects what AuditDenied selects, and a random share of the requests that passed.
	AuditSample
	// AuditAll selects all requests.
	AuditAll
)

// AddressMode selects how addresses are written to the audit log.
type AddressMode string

// The values of AddressMode.
const (
	AddressFull   AddressMode = "full"   // the whole address
	AddressPrefix AddressMode = "prefix" // the first 24 bits of an IPv4 address, or 48 of an IPv6 address
	AddressOff    AddressMode = "off"    // nothing
)

// WantAudit describes the valid texts of an Audit, for errors.
const WantAudit = "off, denied, all, or sample and a percentage above 0% and up to 100%, as in sample 1%"

var auditLevels = map[string]Level{"off": AuditOff, "denied": AuditDenied, "all": AuditAll}

// ParseAudit parses an audit setting: off, denied, all, or sample and a percentage. For "" it returns
// fallback.
func ParseAudit(text string, fallback Audit) (Audit, error) {
	if text == "" {
		return fallback, nil
	}
	if level, ok := auditLevels[Unquoted(text)]; ok {
		return Audit{Level: level}, nil
	}
	words := strings.Fields(text)
	if len(words) == 2 && words[0] == "sample" {
		if share, err := ParseShare(words[1], math.SmallestNonzeroFloat64, 1); err == nil {
			return Audit{Level: AuditSample, Share: share}, nil
		}
	}
	return Audit{}, Invalid("audit", text, WantAudit)
}

// MaxAudit returns the one of a and b that records more requests.
func MaxAudit(a, b Audit) Audit {
	if b.Level > a.Level || b.Level == a.Level && b.Share > a.Share {
		return b
	}
	return a
}

// ParseShare parses a percentage, such as "5%", as a share from minShare to maxShare.
func ParseShare(text string, minShare, maxShare float64) (float64, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	share := percent / 100
	if err != nil || !strings.HasSuffix(text, "%") || math.IsNaN(share) || share < minShare ||
		share > maxShare {
		return 0, strconv.ErrRange
	}
	return share, nil
}

// Unquoted returns off for the forms of false. YAML 1.1, which Kubernetes reads, takes the word off without
// quotation marks for false.
func Unquoted(text string) string {
	if text == "false" || text == "0" {
		return "off"
	}
	return text
}

const (
	// year is the length of a leap year, so that an age of several years is never shorter than these years.
	year     = 366 * 24 * time.Hour
	maxYears = 100

	// MaxAge is the longest age that ParseAge accepts in years. It also bounds retentions in other units.
	MaxAge = maxYears * year
)

// ParseAge parses a duration in the syntax of ratelimit.ParseWindow, or 1 to 100 years of 366 days, as in 7y.
func ParseAge(text string) (time.Duration, error) {
	number, isYears := strings.CutSuffix(text, "y")
	if !isYears {
		return ratelimit.ParseWindow(text)
	}
	years, err := strconv.Atoi(number)
	if err != nil || years < 1 || years > maxYears {
		return 0, Invalid("", text, "a duration such as 90d, or up to 100 years, as in 7y")
	}
	return time.Duration(years) * year, nil
}
