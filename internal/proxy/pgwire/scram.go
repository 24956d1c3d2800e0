package pgwire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxIterations bounds the work that a server can demand. Postgres's default is 4,096.
const maxIterations = 10000000

// scram is the state of an exchange by RFC 5802 with SHA-256 (RFC 7677).
type scram struct {
	mechanism string
	header    string // the GS2 header, which says whether the client supports channel binding
	binding   []byte // the channel binding data, for -PLUS
	bare      string // client-first-message-bare
	nonce     string // the client's
	final     []byte // the signature by which the server proves that it has the password
}

// scramLogIn logs in with the best mechanism that the server offers.
func scramLogIn(c *conn, cfg *config, password string, offered []string) (*serverError, error) {
	s, err := newScram(offered, serverEndPoint(c, cfg.binding), cfg.binding)
	if err != nil {
		return nil, err
	}
	random := make([]byte, 18)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	s.begin("", base64.StdEncoding.EncodeToString(random))
	first := s.header + s.bare
	message := append([]byte(s.mechanism+"\x00"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(message[len(message)-4:], uint32(len(first)))
	if err := send(c, 'p', string(message)+first); err != nil {
		return nil, err
	}
	challenge, reported, err := nextSASL(c, authSASLNext)
	if reported != nil || err != nil {
		return reported, err
	}
	response, err := s.respond(challenge, password, c.deadline)
	if err != nil {
		return nil, err
	}
	if err := send(c, 'p', response); err != nil {
		return nil, err
	}
	final, reported, err := nextSASL(c, authSASLFinal)
	if reported != nil || err != nil {
		return reported, err
	}
	return nil, s.verify(final)
}

// nextSASL reads the server's next message of the exchange.
func nextSASL(c *conn, want uint32) (string, *serverError, error) {
	for {
		kind, body, err := next(c)
		switch {
		case err != nil:
			return "", nil, err
		case kind == 'N' || kind == 'S':
		case kind == 'E':
			return "", parseError(body), nil
		case kind == 'R' && len(body) >= 4 && binary.BigEndian.Uint32(body) == want:
			return string(body[4:]), nil, nil
		default:
			return "", nil, fmt.Errorf("the server broke off the authentication by SCRAM: %w",
				unexpected(kind))
		}
	}
}

// newScram selects the mechanism. endPoint is nil if channel binding is not possible.
func newScram(offered []string, endPoint []byte, binding string) (*scram, error) {
	plus := false
	for _, mechanism := range offered {
		plus = plus || mechanism == "SCRAM-SHA-256-PLUS"
	}
	switch {
	case plus && endPoint != nil:
		return &scram{mechanism: "SCRAM-SHA-256-PLUS", header: "p=tls-server-end-point,,", binding: endPoint},
			nil
	case binding == "require":
		return nil, errors.New(
			"channel_binding is require, but the server does not offer it on this connection")
	case endPoint != nil:
		// This header says that the client supports channel binding. The server refuses
		// the login if it offered it: then an attacker has removed the offer.
		return &scram{mechanism: "SCRAM-SHA-256", header: "y,,"}, nil
	}
	return &scram{mechanism: "SCRAM-SHA-256", header: "n,,"}, nil
}

// begin sets the first message. Its user is empty for Postgres, which takes the user
// from the StartupMessage.
func (s *scram) begin(user, nonce string) {
	s.nonce = nonce
	s.bare = "n=" + user + ",r=" + nonce
}

// respond returns the answer to the server's challenge, which proves that the client
// has the password.
func (s *scram) respond(challenge, password string, deadline time.Time) (string, error) {
	nonce := ""
	iterations := 0
	var salt []byte
	for _, attribute := range strings.Split(challenge, ",") {
		var err error
		switch {
		case strings.HasPrefix(attribute, "r="):
			nonce = attribute[2:]
		case strings.HasPrefix(attribute, "s="):
			salt, err = base64.StdEncoding.DecodeString(attribute[2:])
		case strings.HasPrefix(attribute, "i="):
			iterations, err = strconv.Atoi(attribute[2:])
		case strings.HasPrefix(attribute, "m="):
			err = errors.New("extension")
		}
		if err != nil {
			return "", errors.New("the server's challenge for SCRAM is malformed")
		}
	}
	if !strings.HasPrefix(nonce, s.nonce) || nonce == s.nonce || len(salt) == 0 {
		return "", errors.New("the server's challenge for SCRAM is malformed, or not for us")
	}
	if iterations < 1 || iterations > maxIterations {
		return "", fmt.Errorf("the server wants %d iterations of SCRAM, must be from 1 to %d", iterations,
			maxIterations)
	}
	salted, err := saltPassword(password, salt, iterations, deadline)
	if err != nil {
		return "", err
	}
	bound := base64.StdEncoding.EncodeToString(append([]byte(s.header), s.binding...))
	unproven := "c=" + bound + ",r=" + nonce
	everything := s.bare + "," + challenge + "," + unproven
	clientKey := mac(salted, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	proof := mac(storedKey[:], everything)
	subtle.XORBytes(proof, proof, clientKey)
	s.final = mac(mac(salted, "Server Key"), everything)
	return unproven + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks the server's last message.
func (s *scram) verify(final string) error {
	if strings.HasPrefix(final, "e=") {
		return errors.New("the server refuses the authentication by SCRAM: " + printable(final[2:]))
	}
	signature := strings.TrimPrefix(strings.SplitN(final, ",", 2)[0], "v=")
	given, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(given, s.final) {
		return errors.New("the server does not know the password: its signature in SCRAM is wrong")
	}
	return nil
}

// saltPassword is PBKDF2 for one block, called Hi in RFC 5802.
func saltPassword(password string, salt []byte, iterations int, deadline time.Time) ([]byte, error) {
	m := hmac.New(sha256.New, []byte(password))
	m.Write(salt)
	m.Write([]byte{0, 0, 0, 1})
	u := m.Sum(nil)
	salted := append([]byte(nil), u...)
	for i := 1; i < iterations; i++ {
		m.Reset()
		m.Write(u)
		u = m.Sum(u[:0])
		subtle.XORBytes(salted, salted, u)
		if i%8192 == 0 && !deadline.IsZero() && time.Now().After(deadline) {
			return nil, fmt.Errorf("the server wants %d iterations of SCRAM, which take too long", iterations)
		}
	}
	return salted, nil
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// serverEndPoint returns the channel binding data tls-server-end-point of RFC 5929,
// a hash of the server's certificate. It returns nil without TLS, for certificates
// for which it is not defined, and if channel binding is disabled.
func serverEndPoint(c *conn, binding string) []byte {
	secure, ok := c.nc.(*tls.Conn)
	if !ok || binding == "disable" {
		return nil
	}
	certs := secure.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil
	}
	raw := certs[0].Raw
	name := certs[0].SignatureAlgorithm.String()
	switch {
	case strings.Contains(name, "SHA384"):
		sum := sha512.Sum384(raw)
		return sum[:]
	case strings.Contains(name, "SHA512"):
		sum := sha512.Sum512(raw)
		return sum[:]
	case strings.Contains(name, "SHA") || strings.Contains(name, "MD5"):
		sum := sha256.Sum256(raw)
		return sum[:]
	}
	return nil
}
