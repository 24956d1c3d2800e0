package page

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
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

// action changes something. do does it within a transaction, which is rolled back until a person has confirmed it.
type action[A any] interface {
	*A
	signed() *signature
	do(ctx context.Context, db *admin.Database, now time.Time) (*change, error)
}

// signature is a part of each action: who does it, and the confirmation that the answer to the body without it has.
type signature struct {
	By      string `json:"by,omitempty"`
	Confirm string `json:"confirm,omitempty"`
}

func (s *signature) signed() *signature { return s }

// change is what an action does: for the question before it, and for the answer after it.
type change struct {
	Text   string // such as "Ban the user ann until 15:05:03 UTC"
	Effect []string
	Danger bool
	Undo   *undo
}

// undo is the action that takes another one back.
type undo struct {
	Action string `json:"action"`
	Body   any    `json:"body"`
	Label  string `json:"label"`
}

// obeyed is a part of most effects.
const obeyed = "All proxies obey within a second."

// acting is an action on the database of a dataset as a question. Without the confirmation of its first answer it says
// what it would do.
func acting[A any, P action[A]](of dataset) *question {
	return &question{http.MethodPost, fieldsOf(reflect.TypeFor[A]()), func(s *Server, r *http.Request) (any, error) {
		if !s.options.Write {
			return nil, &failure{http.StatusNotFound, "", "nothing can be changed here: the page is without `write`"}
		}
		a := P(new(A))
		if err := readJSON(r.Body, a); err != nil {
			return nil, err
		}
		signed := a.signed()
		by, confirm := cmp.Or(s.who(r), signed.By), signed.Confirm
		if err := checkPerson(by); err != nil && by+confirm != "" { // what is only asked needs no name
			return nil, err
		}
		*signed = signature{}
		body, err := json.Marshal(a)
		if err != nil {
			return nil, err
		}
		asked := sha256.Sum256(append([]byte(r.URL.Path), body...))
		confirmed := s.confirms(confirm, asked)
		if confirm != "" && !confirmed {
			return nil, &failure{http.StatusConflict, "confirm", "the confirmation is not for this, was used, or is older than 2 minutes: ask again"}
		}
		var did *change
		err = s.ask(r.Context(), of, func(ctx context.Context, db *admin.Database) error {
			now, err := db.Now(ctx)
			if err != nil {
				return err
			}
			return db.As(ctx, by, !confirmed, func() (err error) {
				if did, err = a.do(ctx, db, now); err == nil && of == ofPolicy {
					did.Undo, err = undoOf(ctx, db)
				}
				return err
			})
		})
		switch {
		case err != nil:
			return nil, err
		case confirmed:
			return map[string]any{"done": "Done: " + did.Text + ".", "undo": did.Undo}, nil
		}
		return map[string]any{
			"confirm": s.confirmation(asked), "question": did.Text + "?", "effect": did.Effect, "danger": did.Danger,
		}, nil
	}}
}

// undoOf is the action that takes back what this transaction has done to the policy; nil: nothing.
func undoOf(ctx context.Context, db *admin.Database) (*undo, error) {
	made, err := db.Ask(ctx, "SELECT seq FROM rate_limit_changes WHERE xid = pg_current_xact_id() ORDER BY seq LIMIT 1")
	for i := range made {
		return &undo{"undo", undoAction{Change: made[i].Get("seq").(int64)}, "Take it back"}, nil
	}
	return nil, err
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

// plan is what a person was asked about, as a digest, and until when that may be confirmed.
type plan struct {
	asked [sha256.Size]byte
	until time.Time
}

// confirmation remembers what a person is asked about, and returns the text that confirms it.
func (s *Server) confirmation(asked [sha256.Size]byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, text := time.Now(), rand.Text()
	maps.DeleteFunc(s.plans, func(_ string, p plan) bool { return !now.Before(p.until) })
	s.plans[text] = plan{asked, now.Add(confirmTime)}
	return text
}

// confirms reports whether a text confirms what is asked: within confirmTime, and once.
func (s *Server) confirms(text string, asked [sha256.Size]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plans[text]
	if p.asked != asked || !time.Now().Before(p.until) {
		return false
	}
	delete(s.plans, text)
	return true
}
