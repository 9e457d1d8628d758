package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLSFiles are PEM files of a certificate authority made for one test and of two certificates it signed.
type TLSFiles struct {
	CA, Cert, Key, ClientCert, ClientKey string
}

// NewTLSFiles makes an authority, a server certificate for 127.0.0.1, ::1 and "localhost", and a client
// certificate with the common name given.
func NewTLSFiles(t testing.TB, clientName string) TLSFiles {
	t.Helper()
	dir := t.TempDir()
	caKey, ca := newCert(t, dir, "ca", nil, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	newCert(t, dir, "server", caKey, ca, &x509.Certificate{
		Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	newCert(t, dir, "client", caKey, ca, &x509.Certificate{
		Subject: pkix.Name{CommonName: clientName}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	f := func(name string) string { return filepath.Join(dir, name) }
	return TLSFiles{f("ca.pem"), f("server.pem"), f("server.key"), f("client.pem"), f("client.key")}
}

func newCert(t testing.TB, dir, name string, signer *ecdsa.PrivateKey, parent, cert *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		signer, parent = key, cert
	}
	cert.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, parsed
}
