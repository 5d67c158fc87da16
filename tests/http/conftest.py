import openai
import pytest

import server as srv


def finish(s):
    status = s.stop()
    text = s.log()
    assert status == 0, f"exit status {status}\n{text}"
    assert "ERROR" not in text, text


@pytest.fixture(scope="session")
def server():
    s = srv.Server()
    yield s
    finish(s)


@pytest.fixture
def start():
    """Starts servers with options of the test's own; those still running at its end are ended."""
    started = []

    def make(*args, **kw):
        s = srv.Server(*args, **kw)
        started.append(s)
        return s

    yield make
    for s in started:
        if s.alive():
            finish(s)


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60 * srv.SLOWNESS) as c:
        yield c


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="session")
def smollm2():
    if not srv.SMOLLM2:
        pytest.skip("SHENG_SMOLLM2 is not set")
    if srv.THREADS:
        pytest.skip("the real model takes an hour with the thread sanitizer")
    s = srv.Server(srv.SMOLLM2, "--exact", "--max-model-len", "2048", "--served-model-name", "smol", "SmolLM2", env={"SHENG_MEMORY_LIMIT": "8GiB"})
    yield s
    finish(s)


@pytest.fixture(autouse=True)
def server_survives(request):
    """After every test on the shared server: it is alive and idle."""
    yield
    if "server" in request.fixturenames:
        s = request.getfixturevalue("server")
        assert s.alive(), s.log()
        s.wait_metric("num_requests_running", 0)
