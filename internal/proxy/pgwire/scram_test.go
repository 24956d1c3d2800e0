package pgwire

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The example of RFC 7677, section 3.
const (
	rfcNonce     = "rOprNGfwEbeRWgbNEkqO"
	rfcChallenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
	rfcResponse  = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0," +
		"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	rfcVerdict = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
)

func newRFCScram(t *testing.T) *scram {
	t.Helper()
	s, err := newScram("SCRAM-SHA-256\x00\x00", nil, "prefer")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.first("user", rfcNonce), "n,,n=user,r="+rfcNonce; got != want {
		t.Errorf("first() = %q, want %q", got, want)
	}
	return s
}

// The example of RFC 7677 succeeds. Any other signature of the server is an error.
func TestScramRFC7677(t *testing.T) {
	s := newRFCScram(t)
	got, err := s.respond(rfcChallenge, "pencil", time.Time{})
	if err != nil || got != rfcResponse {
		t.Errorf("respond() = %q, %v; want %q", got, err, rfcResponse)
	}
	if err := s.verify(rfcVerdict); err != nil {
		t.Error(err)
	}
	for _, verdict := range []string{"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "v=", "", "v=!",
		"e=other-error"} {
		if err := s.verify(verdict); err == nil {
			t.Errorf("verify(%q) = nil, want an error", verdict)
		}
	}
}

// A challenge is an error if it is malformed, answers another nonce, or requires more iterations than are
// possible before the deadline.
func TestInvalidScramChallengesAreErrors(t *testing.T) {
	for _, c := range []struct{ challenge, want string }{
		{"", "malformed"},
		{strings.Replace(rfcChallenge, "r=rO", "r=RO", 1), "not for us"},
		{"r=" + rfcNonce + ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "not for us"},
		{strings.Replace(rfcChallenge, "s=W22Z", "s=!", 1), "malformed"},
		{strings.Replace(rfcChallenge, "s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=", 1), "malformed"},
		{strings.Replace(rfcChallenge, "i=4096", "i=x", 1), "malformed"},
		{strings.Replace(rfcChallenge, "i=4096", "i=0", 1), "requires 0 iterations"},
		{strings.Replace(rfcChallenge, "i=4096", "i=-5", 1), "requires -5 iterations"},
		{strings.Replace(rfcChallenge, "i=4096", "i=10000001", 1), "requires 10000001 iterations"},
		{"m=x," + rfcChallenge, "malformed"},
	} {
		got, err := newRFCScram(t).respond(c.challenge, "pencil", time.Time{})
		if !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("respond(%q) = %q, %v; want %q", c.challenge, got, err, c.want)
		}
	}
	start := time.Now()
	_, err := newRFCScram(t).respond(strings.Replace(rfcChallenge, "i=4096", "i=10000000", 1), "pencil",
		start.Add(10*time.Millisecond))
	if !strings.Contains(fmt.Sprint(err), "take too long") {
		t.Errorf("10,000,000 iterations in 10 ms: error %v after %v, want one about the time", err,
			time.Since(start))
	}
}

// In TLS, a login without channel binding succeeds if the server does not offer the binding, unless
// channel_binding is require. testdata/logins.txt has logins to a real server, which offers it.
func TestScramWithoutBinding(t *testing.T) {
	const offered = "SCRAM-SHA-256\x00\x00"
	s, err := newScram(offered, []byte("x"), "prefer")
	if err != nil || s.mechanism != "SCRAM-SHA-256" || s.header != "y,," {
		t.Errorf("newScram(prefer) = %+v, %v; want SCRAM-SHA-256 and y,,", s, err)
	}
	_, err = newScram(offered, []byte("x"), "require")
	if !strings.Contains(fmt.Sprint(err), "channel_binding is require") {
		t.Errorf("newScram(require): error %v, want one about channel_binding", err)
	}
}
