package pgwire

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/authority"
)

// The error of a call names the fault in the login, and does not quote the password.
func TestInvalidLoginNamesFaultWithoutPassword(t *testing.T) {
	ready := msg('K', "\x00\x00\x00\x07key!") + msgReady
	for _, c := range []struct{ name, server, want string }{
		{"the end", "", "closed the connection"},
		{"another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n", "which is not accepted"},
		{"unknown authentication", msgAuth(99, ""), "authentication number 99, which is not supported"},
		{"another SASL", msgAuth(10, "OAUTHBEARER\x00SCRAM-SHA-1\x00\x00"),
			"by OAUTHBEARER, SCRAM-SHA-1, which is not supported"},
		{"a question after all", msgAuth(0, "") + msgAuth(3, ""), `unexpected message "R"`},
		{"ready without a login", ready, `unexpected message "Z"`},
		{"an older protocol", msg('v', "\x00\x00\x00\x00\x00\x00\x00\x00"),
			"does not speak protocol 3.0"},
		{"wrong password",
			msgAuth(3, "") + msgError("FATAL", "28P01", `password authentication failed for user "me"`),
			`FATAL: password authentication failed for user "me" (SQLSTATE 28P01)`},
		{"control characters", msgError("FATAL", "57P03", "a\x1b[2Jb"), "FATAL: a?[2Jb (SQLSTATE 57P03)"},
		{"SCRAM broken off", msgAuth(10, "SCRAM-SHA-256\x00\x00") + msgAuth(0, ""),
			"broke off the authentication with a request of number 0"},
		{"SCRAM without a nonce", msgAuth(10, "SCRAM-SHA-256\x00\x00") + msgAuth(11, "r=x,s=W22Z,i=4096"),
			"not for us"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newRawFake(t, func(s *fakeSession) {
				s.write(c.server)
				_ = s.Conn.(*net.TCPConn).CloseWrite()
				waitForEnd(s)
			})
			p := open(t, dsn, Options{})
			st := stmt("A")
			err := tryRun(t, p, st)
			if text := fmt.Sprint(err); !strings.Contains(text, c.want) || strings.Contains(text, "sEcReT") {
				t.Errorf("Run() = %v, want %q without the password", err, c.want)
			}
			if st.Err == nil {
				t.Error("the statement has no error, want one")
			}
			_, code, _ := strings.Cut(strings.TrimSuffix(c.want, ")"), "(SQLSTATE ")
			if st.Code != code {
				t.Errorf("code %q, want %q", st.Code, code)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// respondTLS returns the script of a server that responds to a request for TLS with a letter. If breaks is
// set, the server then closes the connection.
func respondTLS(cert tls.Certificate, letter string, breaks bool) func(*fakeSession) {
	return func(s *fakeSession) {
		s.write(letter)
		if letter == "S" {
			s.Conn = tls.Server(s.Conn, &tls.Config{Certificates: []tls.Certificate{cert}})
		}
		if breaks && letter == "S" {
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

// sslmode decides whether a session uses TLS, or fails, if the server offers TLS, refuses it or breaks the
// connection off.
func TestSSLModeDecidesEncryption(t *testing.T) {
	ca := authority.New(t)
	cert, err := tls.X509KeyPair(ca.Issue(t, "db.example", time.Hour, "db.example", "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	offers, refuses, breaks := respondTLS(cert, "S", false), respondTLS(cert, "N", false),
		respondTLS(cert, "S", true)
	for _, c := range []struct {
		name       string
		server     func(*fakeSession)
		mode, want string // want is "tls", "plain" or an error
	}{
		{name: "offers", server: offers, mode: "prefer", want: "tls"},
		{name: "refuses", server: refuses, mode: "disable", want: "plain"},
		{name: "refuses", server: refuses, mode: "prefer", want: "plain"},
		{name: "refuses", server: refuses, mode: "require",
			want: "does not offer TLS, which sslmode=require needs"},
		{name: "refuses", server: refuses, mode: "verify-full&sslrootcert=" + writeFile(t, ca.PEM),
			want: "does not offer TLS"},
		{name: "breaks", server: breaks, mode: "prefer", want: "plain"},
		{name: "breaks", server: breaks, mode: "require", want: "TLS: "},
		{name: "garbles", server: func(s *fakeSession) { s.write("E") }, mode: "require",
			want: "cannot negotiate TLS"},
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
			err := tryRun(t, p, stmt("A"))
			got := "plain"
			if err != nil {
				got = err.Error()
			} else if p.idle[0].secure != nil {
				got = "tls"
			}
			wantError := c.want != "plain" && c.want != "tls"
			if (err != nil) != wantError || !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
