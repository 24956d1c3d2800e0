package page

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// confirmTime is for how long a confirmation holds.
	confirmTime = 2 * time.Minute
	maxName     = 100 // characters of the name of a person
)

// action changes something.
type action interface {
	// plan checks what is asked for, and says what it would do. It changes nothing.
	plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error)
	// do does it, in a transaction.
	do(ctx context.Context, db *admin.Database, now time.Time) (*done, error)
}

// planned is what an action would do.
type planned struct {
	Confirm  string   `json:"confirm"`
	Question string   `json:"question"`
	Effect   []string `json:"effect"`
	Danger   bool     `json:"danger"`
}

// done is what an action did, and the way back.
type done struct {
	Done string `json:"done"`
	Undo *undo  `json:"undo"`
}

// undo is the action that takes another one back.
type undo struct {
	Action string `json:"action"`
	Body   any    `json:"body"`
	Label  string `json:"label"`
}

// actions makes the actions by their names.
var actions = map[string]func() action{
	"pause": func() action { return &pauseAction{} }, "resume": func() action { return &resumeAction{} },
	"ban": func() action { return &banAction{} }, "unban": func() action { return &unbanAction{} },
	"override": func() action { return &overrideAction{} }, "unoverride": func() action { return &unoverrideAction{} },
	"reset": func() action { return &resetAction{} },
}

// changed is what an action changes.
func changed(name string) dataset {
	switch name {
	case "pause", "resume", "reset":
		return ofCounters
	}
	return ofPolicy
}

// act asks whether an action is meant, or does it if the body has the confirmation.
func (s *Server) act(r *http.Request, name string, make func() action) (any, error) {
	var fields map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&fields); err != nil {
		return nil, &failure{http.StatusBadRequest, "", "the body is no JSON object"}
	}
	var confirm, person string
	_ = json.Unmarshal(fields["confirm"], &confirm) // a wrong one confirms nothing
	_ = json.Unmarshal(fields["by"], &person)       // checked below
	delete(fields, "confirm")
	delete(fields, "by")
	if who := s.who(r); who != "" {
		person = who
	}
	if err := checkPerson(person); err != nil {
		return nil, err
	}
	rest, err := json.Marshal(fields) // in the order of the names
	if err != nil {
		return nil, err
	}
	a := make()
	r.Body = io.NopCloser(bytes.NewReader(rest))
	if err := readBody(r, a); err != nil {
		return nil, err
	}
	var answer any
	err = s.databases.ask(r.Context(), func(ctx context.Context, c *connections) error {
		db, err := c.at(ctx, changed(name))
		if err != nil {
			return err
		}
		now, err := db.Now(ctx)
		if err != nil {
			return err
		}
		plan, err := a.plan(ctx, db, now)
		if err != nil {
			return err
		}
		signed := name + "\x00" + person + "\x00" + string(rest)
		if !s.confirms(confirm, signed) {
			if confirm != "" {
				return &failure{http.StatusConflict, "confirm", "the confirmation is not for this, was used, or is older than 2 minutes: ask again"}
			}
			plan.Confirm = s.confirmation(signed, time.Now().Add(confirmTime))
			answer = plan
			return nil
		}
		return db.As(ctx, person, func() error {
			did, err := a.do(ctx, db, now)
			answer = did
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// checkPerson checks the name of a person for the log of changes.
func checkPerson(name string) error {
	n := utf8.RuneCountInString(name)
	wrong := n < 1 || n > maxName || !utf8.ValidString(name)
	for _, c := range name {
		wrong = wrong || !unicode.IsPrint(c) || c == '(' || c == ')'
	}
	if wrong {
		return &ratelimit.FieldError{Field: "by", Value: name, Want: "your name, with 1 to 100 characters and without parentheses: the log of changes has it"}
	}
	return nil
}

// confirmation signs what a person has been asked about, until a time.
func (s *Server) confirmation(signed string, until time.Time) string {
	var text [8]byte
	binary.BigEndian.PutUint64(text[:], uint64(until.UnixNano()))
	return base64.RawURLEncoding.EncodeToString(append(text[:], s.sign(text[:], signed)...))
}

// confirms reports whether a confirmation is for this, not too old, and not used yet: it can be used once.
func (s *Server) confirms(confirm, signed string) bool {
	text, err := base64.RawURLEncoding.DecodeString(confirm)
	if err != nil || len(text) != 8+sha256.Size {
		return false
	}
	now, until := time.Now(), time.Unix(0, int64(binary.BigEndian.Uint64(text)))
	if !hmac.Equal(text[8:], s.sign(text[:8], signed)) || !now.Before(until) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.confirmed, func(_ string, until time.Time) bool { return !now.Before(until) })
	_, again := s.confirmed[string(text)]
	s.confirmed[string(text)] = until
	return !again
}

func (s *Server) sign(until []byte, signed string) []byte {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(until)
	mac.Write([]byte(signed))
	return mac.Sum(nil)
}
