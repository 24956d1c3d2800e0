package pgwire

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
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

// logIn answers the server's requests for authentication after the StartupMessage, until the server is ready
// for statements. It returns the error that the server reported, or another one.
func logIn(c *conn, cfg *config, password string) (*serverError, error) {
	authenticated, accepted := false, false
	for {
		kind, body, err := next(c)
		if err != nil {
			return nil, err
		}
		switch kind {
		case 'R':
			if accepted || len(body) < 4 {
				return nil, unexpected(kind)
			}
			request := binary.BigEndian.Uint32(body)
			if request == authOK {
				accepted = true
				if !authenticated && cfg.binding == "require" {
					return nil, errBinding
				}
				continue
			}
			if authenticated {
				return nil, fmt.Errorf("the server asks for a second authentication, number %d", request)
			}
			authenticated = true
			reported, err := authenticate(c, cfg, password, request, body[4:])
			if reported != nil || err != nil {
				return reported, err
			}
		case 'K':
			if len(body) < 8 || len(body) > 4+256 {
				return nil, unexpected(kind)
			}
			c.cancelKey = append([]byte(nil), body...)
		case 'E':
			return parseError(body), nil
		case 'Z':
			if !accepted || len(body) != 1 || body[0] != 'I' {
				return nil, unexpected(kind)
			}
			return nil, nil
		case 'N', 'S', 'A':
		case 'v':
			return nil, errors.New("the server does not speak protocol 3.0")
		default:
			return nil, unexpected(kind)
		}
	}
}

// errBinding refuses a login without SCRAM.
var errBinding = errors.New("the server logs in by another method, channel_binding=require wants " +
	"scram-sha-256")

// authenticate answers a request for authentication. data is the request without its number.
func authenticate(c *conn, cfg *config, password string, request uint32, data []byte) (*serverError, error) {
	method := map[uint32]string{authCleartext: "password", authMD5: "md5", authSASL: "scram-sha-256"}[request]
	if method == "" {
		return nil, fmt.Errorf("the server asks for authentication number %d, which is not supported "+
			"(GSSAPI is 7, SSPI is 9)", request)
	}
	if request == authSASL && !strings.Contains(string(data), "SCRAM-SHA-256\x00") {
		return nil, fmt.Errorf("the server asks for authentication by %s, which is not supported",
			printable(strings.Join(strings.Fields(strings.Replace(string(data), "\x00", " ", -1)), ", ")))
	}
	if cfg.binding == "require" && request != authSASL {
		return nil, errBinding
	}
	if password == "" {
		return nil, fmt.Errorf("the server asks for a password (method %s) and there is none: "+
			"it must be in the dsn, in PGPASSWORD or in the password file", method)
	}
	switch request {
	case authMD5:
		if len(data) != 4 {
			return nil, errors.New("the server sent a wrong salt for md5")
		}
		password = md5Response(cfg.user, password, data)
	case authSASL:
		return scramLogIn(c, cfg, password, strings.Split(string(data), "\x00"))
	}
	return nil, send(c, 'p', password+"\x00")
}

// md5Response returns the hash that the method md5 sends instead of the password.
func md5Response(user, password string, salt []byte) string {
	inner := md5.Sum([]byte(password + user))
	outer := md5.Sum(append([]byte(hex.EncodeToString(inner[:])), salt...))
	return "md5" + hex.EncodeToString(outer[:])
}
