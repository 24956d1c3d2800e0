package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

var deliverCommand = commandSpec{
	use:   "deliver --to FILE [--format json] [--follow]",
	short: "Sends each notice once to a URL",
	long: `The file contains the URL, which is a secret, and may only be readable by its owner and group.
Each notice is a POST, and is delivered if the status is 2xx within 10 seconds. Redirects are not
followed. Otherwise it is tried again after 10 seconds, then after twice that and so on, up to an
hour, and has failed after a day. Several processes share the notices. After three without a response,
the others wait for the next run, or with --follow for up to a minute.

If the process is killed while it sends a notice, the notice is sent again. The header field
Idempotency-Key, which is also the field id in JSON, is then the same.

Without --follow, the command tries each notice once that is due, as from cron.`,
	example: `notices deliver --to /etc/pg-ratelimit/notices-url
notices deliver --to /run/secrets/slack-url --format slack --follow`,
	flags: []flag{
		{name: "to", usage: "a file with the URL", required: true},
		{name: "format", value: "json", kind: oneOf("json", "slack"),
			usage: "json, or slack for an incoming webhook"},
		toggle("follow", "go on until a signal ends the command"),
	},
	runGo: (*invocation).deliver,
}

const (
	// deliverTimeout bounds one POST, with its response.
	deliverTimeout = 10 * time.Second
	// mostSilent is the number of notices in a row without a response after which the others wait.
	mostSilent = 3
	// stopTimeout bounds the POST that runs at a signal.
	stopTimeout = 5 * time.Second
	// takeNoticeSQL locks a notice that is due at @until, new ones first. Proxies that find it again do not
	// wait for the lock, as they would for an UPDATE.
	takeNoticeSQL = `SELECT n.ctid::text AS row, json_build_object('id', n.id, 'rule', n.rule,
	'limit_name', n.limit_name, 'key', n.key, 'period', n.period, 'percent', n.percent, 'used', n.used,
	'quota', n.quota, 'currency', n.currency, 'at', n.at, 'resets_at', n.resets_at)::text AS body
FROM rate_limit_notices n WHERE n.taken_at IS NULL AND n.void_at = 'infinity'
	AND n.try_at <= coalesce(@until::timestamptz, now())
ORDER BY n.try_at, n.at LIMIT 1 FOR UPDATE SKIP LOCKED`
	// triedNoticeSQL notes the result of a try, and returns it as text. The pauses double, because each is as
	// long as the time since the first try.
	triedNoticeSQL = `UPDATE rate_limit_notices n SET error = @error::text,
	taken_at = CASE WHEN @error::text IS NULL THEN clock_timestamp() END,
	tried_at = coalesce(n.tried_at, clock_timestamp()),
	try_at = CASE WHEN @error::text IS NULL THEN n.try_at
		WHEN n.tried_at <= clock_timestamp() - interval '1 day' THEN 'infinity' ELSE clock_timestamp()
			+ least(greatest(clock_timestamp() - n.tried_at, interval '10 s'), interval '1 h') END
WHERE n.ctid = @row::tid RETURNING CASE WHEN n.taken_at IS NOT NULL THEN 'delivered'
	WHEN n.try_at = 'infinity' THEN 'failed: ' || n.error ELSE 'again at '
	|| to_char(n.try_at, 'YYYY-MM-DD HH24:MI:SSZ') || ': ' || n.error END`
)

// delivery is what the command prints about a notice that it has tried.
type delivery struct {
	Rule    string `json:"rule"`
	Limit   string `json:"limit_name"`
	Key     string `json:"key"`
	Percent int    `json:"percent"`
	Result  string `json:"result"`
	silent  bool   // there was no response
}

// notice is a row of rate_limit_notices as it is sent.
type notice struct {
	delivery
	ID       string
	Used     json.RawMessage
	Quota    json.RawMessage
	Currency string
	ResetsAt string `json:"resets_at"`
}

// deliver sends notices until none is due or several in a row have no response, or with --follow until a
// signal, after which the running POST ends in order.
func (c *invocation) deliver() error {
	stopped, stop := c.untilSignal()
	defer stop()
	c.ctx = context.WithoutCancel(c.ctx)
	posting, endPost := context.WithCancel(c.ctx)
	defer endPost()
	defer context.AfterFunc(stopped, func() { time.AfterFunc(stopTimeout, endPost) })()
	if _, err := readURL(c.flag("to")); err != nil {
		return err
	}
	// A role without the rights to note the result sends nothing.
	if _, err := c.conn.Exec(c.ctx, triedNoticeSQL, pgx.NamedArgs{}); err != nil {
		return err
	}
	var until *string
	follow := c.boolFlag("follow")
	if !follow {
		var err error
		if until, err = c.scalar("now()"); err != nil {
			return err
		}
	}
	p := printer{continues: true}
	tried, left, silent := 0, 0, 0
	for stopped.Err() == nil {
		result, err := c.deliverNext(posting, until)
		if err != nil {
			return err
		}
		pause := followInterval
		if result != nil {
			tried++
			if result.Result != "delivered" {
				left++
			}
			if err := stream(c, &p, result); err != nil {
				return err
			}
			if !result.silent {
				silent = 0
				continue
			}
			if silent++; silent < mostSilent {
				continue
			}
			pause = min(followInterval<<min(silent-mostSilent, 10), time.Minute)
		}
		if !follow {
			break
		}
		select {
		case <-stopped.Done():
		case <-time.After(pause):
		}
	}
	c.transaction = nil // no proxy has to apply it
	switch {
	case follow:
		return nil
	case left > 0:
		return fmt.Errorf("%d of %d notices are not delivered", left, tried)
	case tried == 0 && !c.json:
		return c.printf("No notice is due.\n")
	}
	return nil
}

// deliverNext sends a notice that is due, and notes the result in the transaction that has locked it. The
// result is nil if none is due.
func (c *invocation) deliverNext(posting context.Context, until *string) (result *delivery, err error) {
	target, err := readURL(c.flag("to"))
	if err != nil {
		return nil, err
	}
	err = c.inTransaction(func() error {
		result = nil
		var row, body string
		err := c.conn.QueryRow(c.ctx, takeNoticeSQL, pgx.NamedArgs{"until": until}).Scan(&row, &body)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		var n notice
		if err == nil {
			err = json.Unmarshal([]byte(body), &n)
		}
		if err != nil {
			return err
		}
		if c.flag("format") == "slack" {
			if body, err = c.encode(map[string]any{"text": n.text(), "mrkdwn": false}, ""); err != nil {
				return err
			}
		}
		var failure *string
		answered, err := post(posting, target, n.ID, redactKeys(body))
		if err != nil {
			text := err.Error()
			failure = &text
		}
		n.silent = !answered
		result = &n.delivery
		return c.conn.QueryRow(c.ctx, triedNoticeSQL,
			pgx.NamedArgs{"row": row, "error": failure}).Scan(&result.Result)
	})
	return result, err
}

// readURL returns the URL in a file. Its errors contain neither the URL nor path, which may be the URL by
// mistake.
func readURL(path string) (*url.URL, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("--to: must be a regular file that contains the URL")
	}
	if err == nil {
		if err := pg.CheckMode("--to: the file", info); err != nil {
			return nil, err
		}
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return nil, fmt.Errorf("--to: must be a file that contains the URL: %w", pathErr.Err)
	}
	words := strings.Fields(string(data))
	if len(words) != 1 {
		words = []string{""}
	}
	target, err := url.Parse(words[0])
	if err != nil || target.Hostname() == "" || target.Scheme != "https" && target.Scheme != "http" {
		return nil, errors.New("--to: the file must contain one URL, which begins with https:// or http://")
	}
	return target, nil
}

// poster sends notices. It does not follow redirects, because they would show the notice to others.
var poster = http.Client{Timeout: deliverTimeout,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post sends a notice, and reports whether there was a response. An error does not contain the URL.
func post(ctx context.Context, target *url.URL, id, body string) (answered bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewBufferString(body))
	if err != nil {
		return false, errors.New("the URL cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", id)
	r.Header.Set("User-Agent", "pg-ratelimit/"+host.Version)
	response, err := poster.Do(r)
	var urlErr *url.Error
	switch {
	case errors.Is(err, context.Canceled):
		return false, errors.New("no response before the command ended")
	case errors.As(err, &urlErr) && urlErr.Timeout():
		return false, fmt.Errorf("no response within %v", deliverTimeout)
	case errors.As(err, &urlErr):
		return false, errors.New(strings.NewReplacer(target.Host, "the host", target.Hostname(), "the host",
			target.RequestURI(), "/").Replace(urlErr.Err.Error()))
	case err != nil:
		return false, errors.New("no response")
	}
	_ = response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return true, fmt.Errorf("status %d", response.StatusCode)
	}
	return true, nil
}

// text returns the notice as a line for people, escaped as Slack demands.
func (n *notice) text() string {
	text := fmt.Sprintf("%s/%s of %s: %d %% reached, %s of %s used", short(n.Rule), short(n.Limit),
		short(n.Key), n.Percent, n.Used, strings.TrimSpace(string(n.Quota)+" "+n.Currency))
	if t, err := time.Parse(time.RFC3339, n.ResetsAt); err == nil { // neither NULL nor infinity
		text += ", resets at " + displayTime(t.UTC())
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}

// maxShown bounds the characters of a name in a text. Slack cuts texts of more than 4,000 characters.
const maxShown = 200

// short returns a name in one line and with at most maxShown characters.
func short(name string) string {
	runes := []rune(name)
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = ' '
		}
	}
	if len(runes) > maxShown {
		runes = append(runes[:maxShown-1], '…')
	}
	return string(runes)
}
