package admin

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Period is a part of the history. From belongs to it, Until does not.
type Period struct{ From, Until time.Time }

const wantAgo = "a duration before now such as 30m, 24h or 7d, or " + wantTime

// ParseAgo reads a point in time of the past: a duration before now, which may be in years, or a time
// as ParseTime reads it. The error is a *ratelimit.FieldError about the field.
func ParseAgo(field, text string, now time.Time) (time.Time, error) {
	if age, err := edge.ParseAge(text); err == nil {
		return now.Add(-age), nil
	}
	t, err := ParseTime(field, text)
	if err != nil {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: wantAgo}
	}
	return t, nil
}

// ParsePeriod reads the flags --since and --until. An until of "" is now. The error is a
// *ratelimit.FieldError.
func ParsePeriod(since, until string, now time.Time) (Period, error) {
	p := Period{Until: now}
	var err error
	if p.From, err = ParseAgo("--since", since, now); err != nil {
		return p, err
	}
	if until != "" {
		if p.Until, err = ParseAgo("--until", until, now); err != nil {
			return p, err
		}
	}
	if !p.From.Before(p.Until) {
		return p, &ratelimit.FieldError{Field: "--since", Value: since, Want: "before the end, " + utc(p.Until)}
	}
	return p, nil
}

// utc is a time for people.
func utc(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }

// ParseMonth reads a month such as 2026-11, in UTC. "" is the month of now. The error is a
// *ratelimit.FieldError about the field.
func ParseMonth(field, text string, now time.Time) (Period, error) {
	begin := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	if text != "" {
		var err error
		if begin, err = time.Parse("2006-01", text); err != nil {
			return Period{}, &ratelimit.FieldError{Field: field, Value: text, Want: "a month such as 2026-11"}
		}
	}
	return Period{begin, begin.AddDate(0, 1, 0)}, nil
}
