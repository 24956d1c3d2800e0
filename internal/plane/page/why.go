package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// requestBody is a request that a question is about.
type requestBody struct {
	Method  string `json:"method"`
	Host    string `json:"host"`
	Path    string `json:"path"`
	Address string `json:"address"`
}

func (b *requestBody) request() (*admin.Request, error) {
	path, _, _ := strings.Cut(cmp.Or(b.Path, "/"), "?")
	if !strings.HasPrefix(path, "/") {
		return nil, &ratelimit.FieldError{Field: "path", Value: path, Want: "a path that begins with a slash"}
	}
	r := &admin.Request{Tier: "anonymous", Method: strings.ToUpper(cmp.Or(b.Method, "GET")), Host: b.Host, Path: path, Header: http.Header{}}
	var err error
	if b.Address != "" {
		r.Address, err = admin.ParseAddress("address", b.Address)
	}
	return r, err
}

// explainBody is a request to explain.
type explainBody struct {
	User  string `json:"user"`
	Key   string `json:"key"`
	KeyID int64  `json:"key_id"`
	Tier  string `json:"tier"`
	requestBody
	Route   string            `json:"route"`
	Headers map[string]string `json:"headers"`
	At      string            `json:"at"`
}

func explain(ctx context.Context, db *admin.Database, body *explainBody) (any, error) {
	r, err := body.request()
	if err != nil {
		return nil, err
	}
	r.Key, r.KeyID, r.User, r.Tier, r.Route = body.Key, body.KeyID, body.User, cmp.Or(body.Tier, r.Tier), body.Route
	for name, value := range body.Headers {
		r.Header.Set(name, value)
	}
	if body.At != "" {
		if r.At, err = admin.ParseTime("at", body.At); err != nil {
			return nil, err
		}
	}
	return db.Explain(ctx, r)
}

// whyBody is a question why a sender was refused.
type whyBody struct {
	Who  string `json:"who"`
	Kind string `json:"kind"`
	At   string `json:"at"`
	requestBody
}

// reasons is the answer: what the audit log has, and what the policy would do with the next request.
type reasons struct {
	Kind            string        `json:"kind"`
	Taken           string        `json:"taken"` // what the name was taken for, in words
	Who             string        `json:"who"`
	Found           bool          `json:"found"`
	At              time.Time     `json:"at"`
	Summary         string        `json:"summary"`
	User            *admin.User   `json:"user"`
	Bans            []admin.Ban   `json:"bans"`
	Counters        []admin.Usage `json:"counters"`
	Decisions       []admin.Row   `json:"decisions"`
	Refused         bool          `json:"refused"` // one of them is a refusal
	DecisionsRemark *string       `json:"decisions_note"`
	Next            *nextRequest  `json:"next"`
}

// nextRequest is what the policy would do with the next request.
type nextRequest struct {
	Text        string             `json:"text"`
	Passes      bool               `json:"passes"`
	Explanation *admin.Explanation `json:"explanation"`
}

const (
	// mostDecisions is how many decisions an answer has, and decisionsTime is how far back they go.
	mostDecisions, decisionsTime = 20, 30 * 24 * time.Hour
	// nearTime is how far from a minute another one with refusals is looked for.
	nearTime = 24 * time.Hour
)

// refusals are the decisions by which requests are refused.
var refusals = []string{"limited", "blocked", "rejected"}

// The kinds of senders. Nothing is known of an unknown one: it may be a user that no proxy has seen, or an API key.
const (
	kindUser, kindKey, kindKeyID, kindAddress, kindCounter = "user", "key", "key_id", "address", "counter"
	kindUnknown                                            = "unknown"
)

// takenFor is what a name is taken for, if the policy does not know it.
var takenFor = map[string]string{
	kindUser: "a user, or the key of a limit, that the policy does not have",
	kindKey:  "an API key that the policy does not know", kindAddress: "an address", kindCounter: "a key that a limit counts",
	kindUnknown: "an API key that the policy does not know: there is no user, no number of an API key and no counter of " +
		"this name",
}

// why says why a sender was refused.
func why(ctx context.Context, s *Server, body *whyBody) (any, error) {
	who := strings.TrimSpace(body.Who)
	if address, _, _ := strings.Cut(strings.TrimPrefix(who, "ip:"), "/"); body.Kind == "" { // as the key of a counter
		if _, err := netip.ParseAddr(address); err == nil {
			who = address
		}
	}
	if who == "" {
		return nil, &ratelimit.FieldError{Field: "who", Want: "a user, an address, an API key, # and the number of an API key, or the key of a counter"}
	}
	if _, err := s.section(ctx, "proxies"); err != nil { // the names of rules are known then
		return nil, err
	}
	request, err := body.request()
	if err != nil {
		return nil, err
	}
	w := &whyAsked{request: request, rules: s.collector.ruleNames()}
	w.reasons = reasons{Who: who, Bans: []admin.Ban{}, Counters: []admin.Usage{}, Decisions: []admin.Row{}}
	if err := s.ask(ctx, ofPolicy, func(ctx context.Context, db *admin.Database) error { return w.identify(ctx, db, body) }); err != nil {
		return nil, err
	}
	failed := s.ask(ctx, ofHistory, w.decide)
	w.Found = w.Found || w.User != nil || len(w.Bans) > 0 || len(w.Counters) > 0 || len(w.Decisions) > 0
	if failed != nil {
		text := "The history cannot be read: " + failed.Error()
		w.DecisionsRemark, w.said = &text, "Whether "+w.Who+" was refused is not known: the history cannot be read."
	} else if !w.Found {
		w.said = fmt.Sprintf("Nothing is known of %s: no user, no API key, no ban, no counter and no recorded decision.", w.Who)
		if w.Kind == kindUser && body.Kind == "" {
			w.Kind, w.request.Key, w.request.User = kindUnknown, who, ""
		}
	}
	w.Summary, w.Taken = strings.TrimSpace(w.early+" "+w.said), takenFor[w.Kind]
	if w.User != nil && w.request.KeyID != 0 {
		w.Taken = fmt.Sprintf("the API key #%d of %s", w.request.KeyID, w.User.User)
	} else if w.User != nil && w.User.Tier != nil {
		w.Taken = "a user"
	}
	if w.Kind != kindCounter {
		_ = s.ask(ctx, ofPolicy, w.addNext) // an error means that there is no policy
	}
	return &w.reasons, nil
}

// whyAsked is a question that is being answered.
type whyAsked struct {
	reasons
	now     time.Time
	rules   ruleNames
	request *admin.Request // the next one
	query   admin.AuditQuery
	counter string    // the name as the key of a counter; "": it is none
	minute  time.Time // that is asked about; the zero time is now, until the log says when the last refusal was
	early   string    // that the minute is not yet
	said    string    // what the history says of the minute
}

// whenAsked is the minute that is asked about; the zero time is now. 14:05 is today, or yesterday if it is to come: early
// then says so.
func whenAsked(text string, now time.Time) (minute time.Time, early string, err error) {
	if text == "" {
		return time.Time{}, "", nil
	}
	clockText := text
	if strings.Count(text, ":") == 1 {
		clockText += ":00"
	}
	at, err := time.Parse(time.DateTime, now.UTC().Format(time.DateOnly)+" "+clockText)
	if err == nil {
		if at.After(now) {
			early = minuteText(at, now) + " is not yet."
			at = at.Add(-24 * time.Hour)
		}
	} else if at, err = admin.ParseTime("at", text); err != nil {
		return at, "", &ratelimit.FieldError{Field: "at", Value: text, Want: "a time such as 14:05 or 2026-11-21T14:05:00Z"}
	} else if at.After(now) {
		return at, "", &ratelimit.FieldError{Field: "at", Value: text, Want: "in the past: it is " + clock(now, now)}
	}
	return at.UTC().Truncate(time.Minute), early, nil
}

// identify finds out who the sender is, as the policy, the audit log and the counters have it. The kind is what the name is,
// if it is said. What the policy knows by the name comes before what it may be else. identify does not keep an API key.
func (w *whyAsked) identify(ctx context.Context, db *admin.Database, body *whyBody) (err error) {
	if w.now, err = db.Now(ctx); err != nil {
		return err
	}
	if w.minute, w.early, err = whenAsked(body.At, w.now); err != nil {
		return err
	}
	until := w.now.Add(time.Second)
	if !w.minute.IsZero() {
		until = w.minute.Add(time.Minute)
	}
	w.At = until.UTC()
	w.query = admin.AuditQuery{Period: admin.Period{From: until.Add(-decisionsTime), Until: until}, Most: mostDecisions}
	who, kind := w.Who, body.Kind
	address, notAddress := netip.ParseAddr(who)
	id, notNumber := strconv.ParseInt(strings.TrimPrefix(who, "#"), 10, 64)
	switch {
	case kind != "" && (takenFor[kind] == "" && kind != kindKeyID || kind == kindUnknown):
		return &ratelimit.FieldError{Field: "kind", Value: kind, Want: "user, key, key_id, address or counter"}
	case kind == kindKeyID && (notNumber != nil || id < 1):
		return &ratelimit.FieldError{Field: "who", Value: who, Want: "# and the number of an API key, as in #7"}
	case kind == kindAddress && notAddress != nil:
		return &ratelimit.FieldError{Field: "who", Value: who, Want: "an address such as 192.0.2.1 or 2001:db8::1"}
	case kind != "":
	case notAddress == nil:
		kind = kindAddress
	case strings.HasPrefix(who, policy.KeyPrefix):
		kind = kindKey
	case notNumber == nil && who[0] == '#':
		kind = kindKeyID
	}
	known, err := db.Who(ctx, who, kind, id)
	if err != nil {
		return err
	}
	if known == nil {
		known = &admin.Known{Kind: cmp.Or(kind, kindUser)}
	}
	w.Kind, w.counter = known.Kind, who
	w.request.KeyID, w.query.KeyID = known.KeyID, known.KeyID
	switch w.Kind {
	case kindUser:
		w.query.User, w.request.User, known.User = who, who, who // it may have a ban, and no row
	case kindAddress:
		w.request.Address = address.Unmap().WithZone("")
		w.query.Address = policy.NetworkOf(w.request.Address)
		w.counter = strings.TrimSuffix(w.query.Address.String(), "/32") // as counters have it
	case kindKey:
		w.Who, w.counter = cmp.Or(policy.Hint(who), "an API key"), ratelimit.DigestKey(who)
		if known.KeyID == 0 {
			w.request.Key, w.query.Most = who, 0 // no decision names it
		}
	case kindKeyID:
		w.counter = ""
	}
	exists := false
	if known.User != "" {
		if exists, err = db.HasPolicy(ctx); err != nil {
			return err
		}
	}
	if exists {
		u, err := db.User(ctx, known.User)
		if err != nil && !errors.Is(err, admin.ErrNotFound) {
			return err
		}
		if err == nil {
			w.User, w.Bans, w.Counters = &u, append(w.Bans, u.Bans...), append(w.Counters, u.Usage...)
		}
	}
	if w.User == nil && (w.Kind == kindUser || w.Kind == kindCounter) {
		w.query.Key = w.counter // a user whom only the proxies know may be one
	}
	return nil
}

// addNext adds what the policy would do with the next request.
func (w *whyAsked) addNext(ctx context.Context, db *admin.Database) error {
	e, err := db.Explain(ctx, w.request)
	if err != nil {
		return err
	}
	w.Next = &nextRequest{Text: nextText(e, w.now), Passes: e.Result != "refused", Explanation: e}
	for _, b := range e.Bans {
		if !slices.ContainsFunc(w.Bans, func(k admin.Ban) bool { return k.Kind == b.Kind && k.Banned == b.Banned }) {
			w.Bans = append(w.Bans, b)
		}
	}
	return nil
}
