package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// explainBody is a request to explain.
type explainBody struct {
	User    string            `json:"user"`
	Key     string            `json:"key"`
	KeyID   int64             `json:"key_id"`
	Tier    string            `json:"tier"`
	Method  string            `json:"method"`
	Host    string            `json:"host"`
	Path    string            `json:"path"`
	Address string            `json:"address"`
	Route   string            `json:"route"`
	Headers map[string]string `json:"headers"`
	At      string            `json:"at"`
}

func (b *explainBody) request() (*admin.Request, error) {
	path, _, _ := strings.Cut(cmp.Or(b.Path, "/"), "?")
	if !strings.HasPrefix(path, "/") {
		return nil, &ratelimit.FieldError{Field: "path", Value: path, Want: "a path that begins with a slash"}
	}
	r := &admin.Request{
		Key: b.Key, KeyID: b.KeyID, User: b.User, Tier: cmp.Or(b.Tier, "anonymous"), Method: strings.ToUpper(cmp.Or(b.Method, "GET")), Host: b.Host, Path: path,
		Route: b.Route, Header: http.Header{},
	}
	var err error
	if b.Address != "" {
		if r.Address, err = admin.ParseAddress("address", b.Address); err != nil {
			return nil, err
		}
	}
	for name, value := range b.Headers {
		r.Header.Set(name, value)
	}
	if b.At != "" {
		r.At, err = admin.ParseTime("at", b.At)
	}
	return r, err
}

func explain(ctx context.Context, db *admin.Database, body *explainBody) (any, error) {
	request, err := body.request()
	if err != nil {
		return nil, err
	}
	return db.Explain(ctx, request)
}

// whyBody is a question why a sender was refused.
type whyBody struct {
	Who     string `json:"who"`
	Kind    string `json:"kind"`
	At      string `json:"at"`
	Method  string `json:"method"`
	Host    string `json:"host"`
	Path    string `json:"path"`
	Address string `json:"address"`
}

// reasons is the answer.
type reasons struct {
	Kind            string          `json:"kind"`
	Taken           string          `json:"taken"` // what the name was taken for, in words
	Who             string          `json:"who"`
	Found           bool            `json:"found"`
	At              time.Time       `json:"at"`
	Summary         string          `json:"summary"`
	Plan            *string         `json:"plan"`
	PlanUntil       *time.Time      `json:"plan_until"`
	User            *admin.User     `json:"user"`
	Bans            []admin.Ban     `json:"bans"`
	Counters        []shownUsage    `json:"counters"`
	Decisions       []shownDecision `json:"decisions"`
	DecisionsRemark *string         `json:"decisions_note"`
	Next            *nextRequest    `json:"next"`
}

// shownDecision is a row of the audit log, in words.
type shownDecision struct {
	admin.Audited
	Text string `json:"text"`
}

// nextRequest is what the policy would do with the next request.
type nextRequest struct {
	Text        string             `json:"text"`
	Passes      bool               `json:"passes"`
	Explanation *admin.Explanation `json:"explanation"`
}

const (
	// mostDecisions is how many decisions an answer has.
	mostDecisions = 20
	// decisionsTime is how far back they go.
	decisionsTime = 30 * 24 * time.Hour
)

// The kinds of senders. Nothing is known of an unknown one: it may be a user that no proxy has seen, or an API key.
const (
	kindUser, kindKey, kindKeyID, kindAddress, kindCounter = "user", "key", "key_id", "address", "counter"
	kindUnknown                                            = "unknown"
)

// why says why a sender was refused.
func why(ctx context.Context, s *Server, body *whyBody) (any, error) {
	who := strings.TrimSpace(body.Who)
	if who == "" {
		return nil, &ratelimit.FieldError{Field: "who", Want: "a user, an address, an API key, # and the number of an API key, or the key of a counter"}
	}
	if _, err := s.section(ctx, "limits"); err != nil { // the limits of configurations are those that it knows
		return nil, err
	}
	var answer *reasons
	err := s.ask(ctx, func(ctx context.Context, c *connections) error {
		db, err := c.at(ctx, ofPolicy)
		if err != nil {
			return err
		}
		now, err := db.Now(ctx)
		if err != nil {
			return err
		}
		w := &whyAsked{server: s, ctx: ctx, at: c, db: db, body: body, answer: &reasons{Who: who, Bans: []admin.Ban{}, Counters: []shownUsage{}, Decisions: []shownDecision{}}, now: now}
		answer = w.answer
		return w.run(who)
	})
	return answer, err
}

// whyAsked is a question that is being answered.
type whyAsked struct {
	server  *Server
	ctx     context.Context
	at      *connections
	db      *admin.Database // of the policy
	body    *whyBody
	answer  *reasons
	now     time.Time
	request admin.Request // the next one
	query   admin.AuditQuery
	counter string    // the key of the counters in configurations; "" is none
	minute  time.Time // that is asked about; the zero time is now, until the log says when the last refusal was
	said    string    // what became of requests
	refused bool      // in the minute that said is about
	unread  bool      // the history cannot be read
}

func (w *whyAsked) run(who string) error {
	a := w.answer
	minute, early, err := whenAsked(w.body.At, w.now)
	if err != nil {
		return err
	}
	until := w.now.Add(time.Second)
	if w.minute = minute; !minute.IsZero() {
		until = minute.Add(time.Minute)
	}
	a.At = until.UTC()
	w.query = admin.AuditQuery{Period: admin.Period{From: until.Add(-decisionsTime), Until: until}, Most: mostDecisions}
	w.request = admin.Request{Tier: "anonymous", Method: strings.ToUpper(cmp.Or(w.body.Method, "GET")), Host: w.body.Host, Path: cmp.Or(w.body.Path, "/"), Header: http.Header{}}
	if w.body.Address != "" {
		if w.request.Address, err = admin.ParseAddress("address", w.body.Address); err != nil {
			return err
		}
	}
	if a.Kind, err = w.kindOf(who); err != nil {
		return err
	}
	switch a.Kind {
	case kindUser:
		err = w.aboutUser(who)
	case kindAddress:
		err = w.aboutAddress(who)
	case kindKey:
		err = w.aboutKey(who)
	case kindKeyID:
		id, failed := strconv.ParseInt(strings.TrimPrefix(who, "#"), 10, 64)
		if failed != nil || id < 1 {
			return &ratelimit.FieldError{Field: "who", Value: who, Want: "# and the number of an API key, as in #7"}
		}
		err = w.aboutKeyID(id)
	default:
		w.counter = who
	}
	if err != nil {
		return err
	}
	if err := w.addCounters(); err != nil {
		return err
	}
	w.addDecisions()
	a.Found = a.Found || a.User != nil || len(a.Bans) > 0 || len(a.Counters) > 0 || len(a.Decisions) > 0
	if a.Kind == kindUser && w.body.Kind == "" && !a.Found && !w.unread {
		a.Kind, w.request.Key, w.request.User = kindUnknown, who, ""
	}
	a.Taken = w.taken()
	w.addNext()
	if early != "" {
		w.said = early + " " + w.said
	}
	a.Summary = w.summary()
	return nil
}

// kindOf is what a text names, unless it is said: what the policy knows by it comes first.
func (w *whyAsked) kindOf(who string) (string, error) {
	switch said := w.body.Kind; said {
	case kindUser, kindKey, kindKeyID, kindAddress, kindCounter:
		return said, nil
	case "":
	default:
		return "", &ratelimit.FieldError{Field: "kind", Value: said, Want: "user, key, key_id, address or counter"}
	}
	if _, err := netip.ParseAddr(who); err == nil {
		return kindAddress, nil
	}
	if strings.HasPrefix(who, policy.KeyPrefix) {
		return kindKey, nil
	}
	digits, isNumber := strings.CutPrefix(who, "#")
	id, err := strconv.ParseInt(digits, 10, 64)
	if isNumber && err == nil && id > 0 {
		return kindKeyID, nil
	}
	if !w.db.HasPolicy(w.ctx) {
		return kindUser, nil
	}
	users, failed := w.db.UserNames(w.ctx, who, 1) // the shortest comes first
	if failed != nil || len(users) > 0 && users[0] == who {
		return kindUser, failed
	}
	if known, failed := w.db.KeyID(w.ctx, who); failed != nil || known != 0 {
		return kindKey, failed
	}
	if err == nil && id > 0 {
		if _, failed := w.db.UserOfKey(w.ctx, id); failed == nil {
			return kindKeyID, nil
		}
	}
	return kindUser, nil
}

// taken is what the name was taken for, in words.
func (w *whyAsked) taken() string {
	a := w.answer
	owner := ""
	if a.User != nil {
		owner = " of " + a.User.User
	}
	switch a.Kind {
	case kindUser:
		if a.User == nil || a.User.Tier == nil {
			return "a user, or the key of a limit, that the policy does not have"
		}
		return "a user"
	case kindKey, kindKeyID:
		if w.request.KeyID == 0 {
			return "an API key that the policy does not know"
		}
		return fmt.Sprintf("the API key #%d%s", w.request.KeyID, owner)
	case kindAddress:
		return "an address"
	case kindCounter:
		return "a key that a limit counts"
	}
	return "an API key that the policy does not know: there is no user, no number of an API key and no counter of this name"
}

// whenAsked is the minute that is asked about; the zero time is now. 14:05 is today, or yesterday if it is to come: early
// then says so.
func whenAsked(text string, now time.Time) (minute time.Time, early string, err error) {
	if text == "" {
		return time.Time{}, "", nil
	}
	at, err := time.Parse("15:04", text)
	if err != nil {
		at, err = time.Parse("15:04:05", text)
	}
	if err == nil {
		day := now.UTC().Truncate(24 * time.Hour)
		at = day.Add(time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second)
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

// aboutUser reads what the policy knows of a user, or of what may be the key of a counter.
func (w *whyAsked) aboutUser(name string) error {
	u, err := w.db.User(w.ctx, name)
	switch {
	case err == nil:
		w.addUser(&u)
	case w.db.HasPolicy(w.ctx) && !errors.Is(err, admin.ErrNotFound):
		return err
	}
	w.counter = name
	w.query.User, w.request.User = name, name
	return nil
}

func (w *whyAsked) addUser(u *admin.User) {
	a := w.answer
	a.User, a.Plan, a.PlanUntil = u, u.Tier, u.TierUntil
	a.Bans = append(a.Bans, u.Bans...)
	for i := range u.Usage {
		a.Counters = append(a.Counters, usageOf(&u.Usage[i], true))
	}
}

func (w *whyAsked) aboutAddress(text string) error {
	address, err := admin.ParseAddress("who", text)
	if err != nil {
		return err
	}
	address = address.Unmap().WithZone("")
	network := policy.NetworkOf(address)
	w.request.Address = address
	w.query.Address = network
	w.counter = strings.TrimSuffix(network.String(), "/32") // as counters have it
	return nil
}

// aboutKey does not keep the key.
func (w *whyAsked) aboutKey(key string) error {
	w.answer.Who = cmp.Or(policy.Hint(key), "an API key")
	w.counter = ratelimit.DigestKey(key)
	id, err := w.db.KeyID(w.ctx, key)
	if err != nil {
		return err
	}
	if id == 0 {
		w.request.Key = key
		w.query.Most = 0 // no decision names it
		return nil
	}
	return w.aboutKeyID(id)
}

func (w *whyAsked) aboutKeyID(id int64) error {
	w.request.KeyID, w.query.KeyID = id, id
	user, err := w.db.UserOfKey(w.ctx, id)
	if err != nil {
		return err
	}
	u, err := w.db.User(w.ctx, user)
	if err == nil {
		w.addUser(&u)
	}
	return err
}

// addCounters adds the counters of limits of configurations.
func (w *whyAsked) addCounters() error {
	if w.counter == "" {
		return nil
	}
	db, err := w.at.at(w.ctx, ofCounters)
	if err != nil {
		return err
	}
	used, err := db.UsedOf(w.ctx, w.server.collector.limits(), w.counter)
	for i := range used {
		w.answer.Counters = append(w.answer.Counters, usageOf(&used[i], false))
	}
	return err
}

// addNext adds what the policy would do with the next request.
func (w *whyAsked) addNext() {
	if w.answer.Kind == kindCounter {
		return
	}
	e, err := w.db.Explain(w.ctx, &w.request)
	if err != nil {
		return // there is no policy
	}
	w.answer.Next = &nextRequest{Text: nextText(e, w.now), Passes: e.Result != "refused", Explanation: e}
	known := map[string]bool{}
	for _, b := range w.answer.Bans {
		known[b.Kind+" "+b.Banned] = true
	}
	for _, b := range e.Bans {
		if !known[b.Kind+" "+b.Banned] {
			w.answer.Bans = append(w.answer.Bans, b)
		}
	}
}
