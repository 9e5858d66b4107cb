// Package auth admits requests over gRPC and HTTP (Gate). It authenticates the client, rejects
// requests that the rules of package access do not allow and requests that a page in a browser must
// not make, and counts and logs the rejections. NeedsOfRPC and NeedsOfRoute have the needs of each
// request, Sessions the logins of browsers, and Attempts delays logins after failed ones.
package auth
