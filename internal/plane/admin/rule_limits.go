package admin

import (
	"context"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// unlimited is the amount of a limit that holds only where an override has an amount.
const unlimited = "unlimited"

// calendarNames are the units in rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"", "day", "week", "month", "year"}

// ruleLimit is a row of rate_limit_rule_limits that is to be made or changed. Fields that are
// nil are NULL.
type ruleLimit struct {
	name     string
	delete   bool
	events   *int64
	per      *string
	calendar *string
	timeZone *string
}

const wantLimit = "EVENTS/WINDOW, as in 100/10s, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight; or empty, to delete it"

// parseRuleLimit reads the setting limit.NAME; "" deletes the limit.
func parseRuleLimit(setting, name, text string) (ruleLimit, error) {
	l := ruleLimit{name: name}
	if text == "" {
		l.delete = true
		return l, nil
	}
	wrong := &ratelimit.FieldError{Field: setting, Value: text, Want: wantLimit}
	amount, window, found := strings.Cut(text, "/")
	if !found {
		return l, wrong
	}
	var err error
	if l.events, err = parseAmount(setting, strings.TrimSpace(amount)); err != nil {
		return l, wrong
	}
	if strings.TrimSpace(window) == ratelimit.InFlight.String() {
		return l, nil
	}
	rate, err := ratelimit.ParseRate("1/" + window)
	if err != nil {
		return l, wrong
	}
	if rate.Calendar == ratelimit.NoCalendar {
		l.setWindow(rate.Window)
		return l, nil
	}
	l.calendar = &calendarNames[rate.Calendar]
	if rate.Zone != "" {
		l.timeZone = &rate.Zone
	}
	return l, nil
}

// parseAmount reads an amount; nil is unlimited.
func parseAmount(setting, text string) (*int64, error) {
	if text == unlimited {
		return nil, nil
	}
	n, err := parseWhole(setting, text)
	if err != nil || n < 0 || n > ratelimit.MaxEvents {
		return nil, &ratelimit.FieldError{Field: setting, Value: text, Want: "a whole number from 0 to 9007199254740992, or unlimited"}
	}
	return &n, nil
}

func (l *ruleLimit) setWindow(window time.Duration) {
	per := intervalOf(window)
	l.per = &per
}

// windows are the windows of the settings that are named by them. That of per_month is on the calendar.
var windows = map[string]time.Duration{"per_second": time.Second, "per_minute": time.Minute, "per_hour": time.Hour, "per_day": 24 * time.Hour}

// unlimitedPer is the limit of a setting per_second … per_month, without an amount.
func unlimitedPer(setting string) ruleLimit {
	l := ruleLimit{name: setting}
	if window, found := windows[setting]; found {
		l.setWindow(window)
	} else if setting != ratelimit.InFlight.String() {
		l.calendar = &calendarNames[ratelimit.Month]
	}
	return l
}

// setLimitSQL gives a new limit the algorithm of the others of its rule. One on the calendar is
// a fixed window, and one without a time is of requests in flight.
const setLimitSQL = `INSERT INTO rate_limit_rule_limits AS l (rule, name, algorithm, events, per, calendar, time_zone)
SELECT $1::text, $2::text, CASE WHEN $5::text IS NOT NULL THEN 'fixed_window' WHEN $4::interval IS NULL THEN 'in_flight' ELSE coalesce(
	(SELECT min(o.algorithm) FROM rate_limit_rule_limits o WHERE o.rule = $1::text AND o.per IS NOT NULL HAVING count(DISTINCT o.algorithm) = 1), 'sliding_window') END,
	$3::bigint, $4::interval, $5::text, $6::text
ON CONFLICT ON CONSTRAINT rate_limit_rule_limits_pkey DO UPDATE SET events = excluded.events, per = excluded.per, calendar = excluded.calendar,
	time_zone = excluded.time_zone, algorithm = CASE WHEN (l.calendar IS NULL) = (excluded.calendar IS NULL) AND (l.per IS NULL) = (excluded.per IS NULL) THEN l.algorithm ELSE excluded.algorithm END,
	burst = CASE WHEN excluded.per IS NOT NULL THEN l.burst END`

// setLimit makes, changes or deletes a limit of a rule that exists.
func (d *Database) setLimit(ctx context.Context, rule string, l ruleLimit) error {
	if l.delete {
		_, err := d.execute(ctx, "DELETE FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2", rule, l.name)
		return err
	}
	_, err := d.execute(ctx, setLimitSQL, rule, l.name, l.events, l.per, l.calendar, l.timeZone)
	return err
}
