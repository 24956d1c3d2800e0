package pgwire

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

// The example of RFC 7677, section 3.
const (
	rfcNonce     = "rOprNGfwEbeRWgbNEkqO"
	rfcChallenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
	rfcResponse  = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	rfcVerdict   = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
)

func newRFCScram(t *testing.T) *scram {
	t.Helper()
	s, err := newScram([]string{"SCRAM-SHA-256", ""}, nil, "prefer")
	if err != nil {
		t.Fatal(err)
	}
	s.begin("user", rfcNonce)
	return s
}

func TestScramRFC7677(t *testing.T) {
	s := newRFCScram(t)
	if got := s.header + s.bare; got != "n,,n=user,r="+rfcNonce {
		t.Errorf("first message %q", got)
	}
	got, err := s.respond(rfcChallenge, "pencil", time.Time{})
	if err != nil || got != rfcResponse {
		t.Errorf("response %q, %v; want %q", got, err, rfcResponse)
	}
	if err := s.verify(rfcVerdict); err != nil {
		t.Error(err)
	}
	for _, verdict := range []string{"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "v=", "", "v=!", "e=other-error"} {
		if err := s.verify(verdict); err == nil {
			t.Errorf("verdict %q is believed", verdict)
		}
	}
}

func TestScramChallenges(t *testing.T) {
	for _, c := range []struct{ challenge, want string }{
		{"", "malformed"},
		{strings.Replace(rfcChallenge, "r=rO", "r=RO", 1), "not for us"},
		{"r=" + rfcNonce + ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "not for us"},
		{strings.Replace(rfcChallenge, "s=W22Z", "s=!", 1), "malformed"},
		{strings.Replace(rfcChallenge, "s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=", 1), "malformed"},
		{strings.Replace(rfcChallenge, "i=4096", "i=x", 1), "malformed"},
		{strings.Replace(rfcChallenge, "i=4096", "i=0", 1), "wants 0 iterations"},
		{strings.Replace(rfcChallenge, "i=4096", "i=-5", 1), "wants -5 iterations"},
		{strings.Replace(rfcChallenge, "i=4096", "i=10000001", 1), "wants 10000001 iterations"},
		{"m=x," + rfcChallenge, "malformed"},
	} {
		got, err := newRFCScram(t).respond(c.challenge, "pencil", time.Time{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q, %v; want %q", c.challenge, got, err, c.want)
		}
	}
	start := time.Now()
	_, err := newRFCScram(t).respond(strings.Replace(rfcChallenge, "i=4096", "i=10000000", 1), "pencil", start.Add(10*time.Millisecond))
	if err == nil || !strings.Contains(err.Error(), "take too long") {
		t.Errorf("10,000,000 iterations in 10 ms: %v after %v", err, time.Since(start))
	}
}

func TestScramMechanism(t *testing.T) {
	both, one := []string{"SCRAM-SHA-256-PLUS", "SCRAM-SHA-256", ""}, []string{"SCRAM-SHA-256"}
	for _, c := range []struct {
		offered   []string
		endPoint  []byte
		binding   string
		mechanism string
		header    string
	}{
		{both, []byte("x"), "prefer", "SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,"},
		{both, []byte("x"), "require", "SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,"},
		{both, nil, "prefer", "SCRAM-SHA-256", "n,,"},
		{one, []byte("x"), "prefer", "SCRAM-SHA-256", "y,,"},
		{one, nil, "prefer", "SCRAM-SHA-256", "n,,"},
		{one, []byte("x"), "require", "", ""},
		{both, nil, "require", "", ""},
	} {
		s, err := newScram(c.offered, c.endPoint, c.binding)
		if c.mechanism == "" {
			if err == nil || !strings.Contains(err.Error(), "channel_binding is require") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || s.mechanism != c.mechanism || s.header != c.header {
			t.Errorf("%+v: %+v, %v", c, s, err)
		}
	}
}

func TestScramPassword(t *testing.T) {
	for given, want := range map[string]string{
		"pencil": "pencil", "I\u00adX": "IX", "a\u00a0b\u3000c": "a b c", "\u200b": " ", "pässwörd": "pässwörd", "\xff\u00ad": "\xff\u00ad",
	} {
		if got := prepare(given); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
	// PBKDF2-HMAC-SHA-256 as in RFC 7914, section 11, its first 32 bytes.
	got, err := saltPassword("passwd", []byte("salt"), 1, time.Time{})
	if want := "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc"; err != nil || hex.EncodeToString(got) != want {
		t.Errorf("%x, %v", got, err)
	}
	got, err = saltPassword("Password", []byte("NaCl"), 80000, time.Time{})
	if want := "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56"; err != nil || hex.EncodeToString(got) != want {
		t.Errorf("%x, %v", got, err)
	}
}

func TestMD5Response(t *testing.T) {
	// Computed with Python's hashlib.
	if got, want := md5Response("alice", "secret", []byte{1, 2, 3, 4}), "md598a0412b9c31436fc53776e863350083"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
