package pgwire

import (
	"crypto"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
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
	header    string // the GS2 header: whether the client supports channel binding
	binding   []byte // the channel binding data, for -PLUS
	bare      string // client-first-message-bare
	nonce     string // the client's nonce
	signature []byte // the expected signature of a server that has the password
}

// newScram selects the mechanism. endPoint is nil if channel binding is not possible.
func newScram(offered string, endPoint []byte, binding string) (*scram, error) {
	const plus = "SCRAM-SHA-256-PLUS"
	s := &scram{mechanism: "SCRAM-SHA-256", header: "n,,"}
	switch {
	case endPoint != nil && strings.Contains(offered, plus+"\x00"):
		s.mechanism = plus
		s.header = "p=tls-server-end-point,,"
		s.binding = endPoint
	case binding == "require":
		return nil, errors.New(
			"channel_binding is require, but the server does not offer it on this connection")
	case endPoint != nil:
		// The client supports channel binding, and the server seems not to. If the server did offer
		// it, an attacker has removed the offer, and this header makes the server refuse the login.
		s.header = "y,,"
	}
	return s, nil
}

// first returns the first message. For Postgres, user is empty, because the server takes the user from the
// StartupMessage.
func (s *scram) first(user, nonce string) string {
	s.nonce = nonce
	s.bare = "n=" + user + ",r=" + nonce
	return s.header + s.bare
}

// respond returns the response to the server's challenge, which proves that the client has the password.
func (s *scram) respond(challenge, password string, deadline time.Time) (string, error) {
	attributes := map[string]string{}
	for _, attribute := range strings.Split(challenge, ",") {
		name, value, _ := strings.Cut(attribute, "=")
		attributes[name] = value
	}
	_, extended := attributes["m"]
	nonce := attributes["r"]
	salt, saltErr := base64.StdEncoding.DecodeString(attributes["s"])
	iterations, countErr := strconv.Atoi(attributes["i"])
	if extended || !strings.HasPrefix(nonce, s.nonce) || nonce == s.nonce || saltErr != nil ||
		len(salt) == 0 || countErr != nil {
		return "", errors.New("the server's challenge for SCRAM is malformed, or not for us")
	}
	if iterations < 1 || iterations > maxIterations {
		return "", fmt.Errorf("the server requires %d iterations of SCRAM, must be from 1 to %d", iterations,
			maxIterations)
	}
	salted, err := saltPassword(password, salt, iterations, deadline)
	if err != nil {
		return "", err
	}
	bound := base64.StdEncoding.EncodeToString(append([]byte(s.header), s.binding...))
	withoutProof := "c=" + bound + ",r=" + nonce
	message := s.bare + "," + challenge + "," + withoutProof
	clientKey := mac(salted, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	proof := mac(storedKey[:], message)
	subtle.XORBytes(proof, proof, clientKey)
	s.signature = mac(mac(salted, "Server Key"), message)
	return withoutProof + ",p=" + base64.StdEncoding.EncodeToString(proof), nil
}

// verify checks the server's last message.
func (s *scram) verify(final string) error {
	if strings.HasPrefix(final, "e=") {
		return errors.New("the server refuses the authentication by SCRAM: " + withoutControls(final[2:]))
	}
	signature := strings.TrimPrefix(strings.SplitN(final, ",", 2)[0], "v=")
	got, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(got, s.signature) {
		return errors.New("the server does not have the password: its signature in SCRAM is wrong")
	}
	return nil
}

// saltPassword computes the first block of PBKDF2, which RFC 5802 calls Hi.
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
			return nil, fmt.Errorf("the server requires %d iterations of SCRAM, which take too long",
				iterations)
		}
	}
	return salted, nil
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// serverEndPoint returns a hash of the server's certificate: the channel binding data tls-server-end-point of
// RFC 5929. serverEndPoint returns nil without TLS, if channel binding is disabled, and for certificates
// without a defined hash.
func serverEndPoint(c *conn, binding string) []byte {
	secure, ok := c.nc.(*tls.Conn)
	if !ok || binding == "disable" {
		return nil
	}
	certs := secure.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil
	}
	name := certs[0].SignatureAlgorithm.String()
	hash := crypto.SHA256
	switch {
	case strings.Contains(name, "SHA384"):
		hash = crypto.SHA384
	case strings.Contains(name, "SHA512"):
		hash = crypto.SHA512
	case !strings.Contains(name, "SHA") && !strings.Contains(name, "MD5"):
		return nil
	}
	sum := hash.New()
	sum.Write(certs[0].Raw)
	return sum.Sum(nil)
}
