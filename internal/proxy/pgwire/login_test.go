package pgwire

import (
	"bytes"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/authority"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestInvalidLogins: the call ends with an error that says what is wrong, without the
// password.
func TestInvalidLogins(t *testing.T) {
	ready := msg('K', "\x00\x00\x00\x07key!") + msgReady
	for _, c := range []struct{ name, parameters, server, want string }{
		{"the end", "", "", "closed the connection"},
		{"another protocol", "", "HTTP/1.1 400 Bad Request\r\n\r\n", "which is not accepted"},
		{"unknown message", "", msg('q', ""), `unexpected message "q" (0x71)`},
		{"unknown authentication", "", msgAuth(99, ""), "authentication number 99, which is not supported"},
		{"another SASL", "", msgAuth(10, "OAUTHBEARER\x00SCRAM-SHA-1\x00\x00"),
			"by OAUTHBEARER, SCRAM-SHA-1, which is not supported"},
		{"md5 without salt", "", msgAuth(5, "abc"), "wrong salt"},
		{"a question after all", "", msgAuth(0, "") + msgAuth(3, ""), `unexpected message "R"`},
		{"ready without a login", "", ready, `unexpected message "Z"`},
		{"a key too short", "", msgAuth(0, "") + msg('K', "\x00\x00\x00\x07"), `unexpected message "K"`},
		{"an older protocol", "", msg('v', "\x00\x00\x00\x00\x00\x00\x00\x00"),
			"does not speak protocol 3.0"},
		{"wrong password", "",
			msgAuth(3, "") + msgError("FATAL", "28P01", `password authentication failed for user "me"`),
			`FATAL: password authentication failed for user "me" (SQLSTATE 28P01)`},
		{"control characters", "", msgError("FATAL", "57P03", "a\x1b[2Jb"), "FATAL: a?[2Jb (SQLSTATE 57P03)"},
		{"SCRAM broken off", "", msgAuth(10, "SCRAM-SHA-256\x00\x00") + msgAuth(0, ""),
			"broke off the authentication with a request of number 0"},
		{"SCRAM without a nonce", "", msgAuth(10, "SCRAM-SHA-256\x00\x00") + msgAuth(11, "r=x,s=W22Z,i=4096"),
			"not for us"},
		{"no authentication", "&channel_binding=require", msgAuth(0, "") + ready,
			"channel_binding=require wants scram-sha-256"},
		{"no channel binding", "&channel_binding=require",
			msgAuth(10, "SCRAM-SHA-256\x00SCRAM-SHA-256-PLUS\x00\x00"), "channel_binding is require"},
		{"no SCRAM", "&channel_binding=require", msgAuth(3, ""),
			"channel_binding=require wants scram-sha-256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newRawFake(t, func(s *fakeSession) {
				s.write(c.server)
				_ = s.Conn.(*net.TCPConn).CloseWrite()
				waitForEnd(s)
			})
			p := open(t, dsn+c.parameters, Options{})
			st := stmt("A")
			err := p.Run(within(t, longTime), []*pgdb.Statement{st})
			if err == nil || st.Err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "sEcReT") {
				t.Errorf("%v, %v; want %q", err, st.Err, c.want)
			}
			if i := strings.Index(c.want, "SQLSTATE "); i >= 0 && !strings.HasPrefix(c.want[i+9:], st.Code) ||
				i >= 0 && st.Code == "" {
				t.Errorf("code %q", st.Code)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// TestServerThatDoesNotKnowThePassword checks that a login fails at a wrong signature of the server.
func TestServerThatDoesNotKnowThePassword(t *testing.T) {
	asked := make(chan string, 1)
	_, dsn := newRawFake(t, func(s *fakeSession) {
		s.write(msgAuth(10, "SCRAM-SHA-256\x00\x00"))
		_, first := s.message()
		nonce := string(first[bytes.LastIndex(first, []byte("r=")):])
		s.write(msgAuth(11, nonce+"more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"))
		s.message()
		s.write(msgAuth(12, rfcVerdict) + msgAuth(0, "") + msgReady)
		asked <- s.request()
	})
	p := open(t, dsn, Options{})
	err := p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")})
	if err == nil || !strings.Contains(err.Error(), "does not know the password") {
		t.Error(err)
	}
	if got := <-asked; got != "" {
		t.Errorf("it was asked %s", got)
	}
}

// TestEncryption checks each sslmode with servers that offer TLS and that do not.
func TestEncryption(t *testing.T) {
	ca := authority.New(t)
	cert, err := tls.X509KeyPair(ca.Issue(t, "db.example", time.Hour, "db.example", "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(letter string, hidden bool) func(*fakeSession) {
		return func(s *fakeSession) {
			s.write(letter)
			if letter == "S" {
				s.Conn = tls.Server(s.Conn, &tls.Config{Certificates: []tls.Certificate{cert}})
			}
			if hidden && letter == "S" {
				_ = s.Conn.(*tls.Conn).NetConn().Close()
				return
			}
			s.kind, s.startup = s.first()
			if letter == "S" && s.kind != 196608 {
				return
			}
			s.welcome()
			serveAll(s)
		}
	}
	// What a server says to the request for TLS, and to a session without.
	offers, refuses, breaks := answer("S", false), answer("N", false), answer("S", true)
	for _, c := range []struct {
		name       string
		server     func(*fakeSession)
		mode, want string // want is "tls", "plain" or an error
	}{
		{"offers", offers, "prefer", "tls"},
		{"refuses", refuses, "disable", "plain"}, {"refuses", refuses, "prefer", "plain"},
		{"refuses", refuses, "require", "does not offer TLS, which sslmode=require needs"},
		{"refuses", refuses, "verify-full&sslrootcert=" + fileOf(t, ca.PEM), "does not offer TLS"},
		{"breaks", breaks, "prefer", "plain"}, {"breaks", breaks, "require", "TLS: "},
		{"garbles", func(s *fakeSession) { s.write("E") }, "require", "does not know how to negotiate TLS"},
	} {
		t.Run(c.name+" "+strings.SplitN(c.mode, "&", 2)[0], func(t *testing.T) {
			_, dsn := newRawFake(t, func(s *fakeSession) {
				if s.kind != 80877103 {
					s.welcome()
					serveAll(s)
					return
				}
				c.server(s)
			})
			p := open(t, strings.Replace(dsn, "sslmode=disable", "sslmode="+c.mode, 1), Options{})
			err := p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")})
			got := "plain"
			if err != nil {
				got = err.Error()
			} else if p.idle[0].secure != nil {
				got = "tls"
			}
			wantError := c.want != "plain" && c.want != "tls"
			if (err != nil) != wantError || !strings.Contains(got, c.want) {
				t.Errorf("%s; want %s", got, c.want)
			}
		})
	}
}
