package pgwire

import (
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// Authentication requests, as the server numbers them.
const (
	authOK        = 0
	authCleartext = 3
	authMD5       = 5
	authSASL      = 10
	authSASLNext  = 11
	authSASLFinal = 12
)

// loginState is the state of a login, which passes the states from notRequested to accepted in their order.
// It skips the states of methods other than the server's: the server requests one method at most. In SCRAM,
// each side sends two messages.
type loginState int

const (
	notRequested  loginState = iota // the server has not requested an authentication
	passwordSent                    // the client has sent its password or a hash of it
	scramStarted                    // the client has sent its first message
	scramProven                     // the client has proved that it has the password
	scramVerified                   // the server has proved that it has the password
	accepted                        // the server has accepted the login
)

// login is a login under way.
type login struct {
	c        *conn
	cfg      *config
	password string
	state    loginState
	scram    *scram // set from scramStarted on
}

// logIn completes the login after the StartupMessage: it responds to the server's requests for authentication
// until the server is ready for statements.
func logIn(c *conn, cfg *config, password string) *connectError {
	l := &login{c: c, cfg: cfg, password: password}
	for {
		kind, body, err := readMessage(c)
		if err != nil {
			return networkError(err.Error())
		}
		switch {
		case kind == 'E':
			return refusedLogin(parseErrorResponse(body))
		case kind == 'R' && len(body) >= 4 && l.state != accepted:
			err = l.respond(binary.BigEndian.Uint32(body), string(body[4:]))
		case kind == 'K' && len(body) >= 8 && len(body) <= 4+256:
			c.cancelKey = append([]byte(nil), body...)
		case kind == 'Z' && string(body) == "I" && l.state == accepted:
			return nil
		case kind == 'v':
			err = errors.New("the server does not speak protocol 3.0")
		default:
			err = unexpected(kind)
		}
		if err != nil {
			return networkError(err.Error())
		}
	}
}

// refusedLogin returns the error of a login that the server refused.
func refusedLogin(e *pg.ServerError) *connectError {
	// Another host may accept the login if this server is starting, stopping or full. If pg_hba.conf has no
	// entry for this client, it may have an entry for this client with different encryption.
	elsewhere := strings.HasPrefix(e.Code, "57") || strings.HasPrefix(e.Code, "53")
	return &connectError{text: e.Err.Error(), code: e.Code, final: !elsewhere,
		retry: e.Code == pg.InvalidAuthorization}
}

// errBinding is the error of a login that requires channel binding, if the server requests another method
// than SCRAM.
var errBinding = errors.New("channel_binding=require needs scram-sha-256, but the server logs in by " +
	"another method")

// respond responds to an authentication request. data is the request without its number.
func (l *login) respond(request uint32, data string) error {
	switch {
	case request == authOK &&
		(l.state == notRequested || l.state == passwordSent || l.state == scramVerified):
		if l.cfg.binding == "require" && l.state != scramVerified {
			return errBinding
		}
		l.state = accepted
		return nil
	case request == authSASLNext && l.state == scramStarted:
		response, err := l.scram.respond(data, l.password, l.c.deadline)
		if err != nil {
			return err
		}
		l.state = scramProven
		return send(l.c, 'p', response)
	case request == authSASLFinal && l.state == scramProven:
		l.state = scramVerified
		return l.scram.verify(data)
	case l.state != notRequested:
		return fmt.Errorf("the server broke off the authentication with a request of number %d", request)
	}
	return l.start(request, data)
}

// start responds to the first request, which selects the method.
func (l *login) start(request uint32, data string) error {
	method := map[uint32]string{authCleartext: "password", authMD5: "md5", authSASL: "scram-sha-256"}[request]
	if method == "" {
		return fmt.Errorf("the server asks for authentication number %d, which is not supported "+
			"(GSSAPI is 7, SSPI is 9)", request)
	}
	if request == authSASL && !strings.Contains(data, "SCRAM-SHA-256\x00") {
		return fmt.Errorf("the server asks for authentication by %s, which is not supported",
			withoutControls(strings.Join(strings.Fields(strings.Replace(data, "\x00", " ", -1)), ", ")))
	}
	if l.cfg.binding == "require" && request != authSASL {
		return errBinding
	}
	if l.password == "" {
		return fmt.Errorf("the server asks for a password (method %s) and there is none: "+
			"it must be in the dsn, in PGPASSWORD or in the password file", method)
	}
	if request == authSASL {
		return l.startScram(data)
	}
	password := l.password
	if request == authMD5 {
		if len(data) != 4 {
			return errors.New("the server sent a wrong salt for md5")
		}
		password = "md5" + md5Hex(md5Hex(password+l.cfg.user)+data)
	}
	l.state = passwordSent
	return send(l.c, 'p', password+"\x00")
}

// startScram sends the first message of SCRAM for the best mechanism that the server offers.
func (l *login) startScram(offered string) error {
	s, err := newScram(offered, serverEndPoint(l.c, l.cfg.binding), l.cfg.binding)
	if err != nil {
		return err
	}
	random := make([]byte, 18)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	message := s.first("", base64.StdEncoding.EncodeToString(random))
	l.scram = s
	l.state = scramStarted
	length := binary.BigEndian.AppendUint32(nil, uint32(len(message)))
	return send(l.c, 'p', s.mechanism+"\x00"+string(length)+message)
}

// md5Hex returns the MD5 sum of text as hexadecimal digits.
func md5Hex(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}
